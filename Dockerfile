# The exporter's image:
#   docker build -t rankskew . && sudo install --directory --owner=9917 /run/rankskew
#   docker run --gpus all -p 9917:9917 -v /run/rankskew:/run/rankskew -v rankskew:/var/lib/rankskew rankskew
# The image contains nothing of the build except the installed wheel.
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir wheels .

FROM python:3.12-slim-bookworm
LABEL org.opencontainers.image.title="rankskew" \
      org.opencontainers.image.description="Names the late rank of a multi-GPU job: the node's exporter" \
      org.opencontainers.image.licenses="Apache-2.0"
# What `docker run --gpus all` mounts for NVML; the exporter also runs without a GPU.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility \
    PYTHONUNBUFFERED=1
WORKDIR /opt/rankskew
COPY --from=build /src/wheels wheels
COPY deploy/image/requirements.txt .
RUN pip install --no-cache-dir --require-hashes -r requirements.txt \
    && pip install --no-cache-dir --no-deps wheels/rankskew-*.whl \
    && rm -r wheels requirements.txt
# The user is a number, so that Kubernetes can see that it is not root. Mount the first directory,
# where training processes find the ingest socket, and the last, which remembers the node's GPUs.
# Orders are given in the container itself: docker exec CONTAINER rankskew gpus release.
RUN useradd --system --uid 9917 --home-dir /opt/rankskew rankskew \
    && install --directory --owner=rankskew /run/rankskew /run/rankskew-operator /var/lib/rankskew
USER 9917
EXPOSE 9917
# Replace it if --web.config.file sets up TLS: this uses plain HTTP.
HEALTHCHECK --interval=15s --timeout=5s --start-period=10s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9917/-/healthy', timeout=4)"]
ENTRYPOINT ["rankskew"]
CMD ["exporter"]
