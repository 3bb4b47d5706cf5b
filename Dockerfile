# The exporter's image:
#   docker build -t rankskew . && sudo install --directory --owner=9917 /run/rankskew
#   docker run --gpus all -p 9917:9917 -v /run/rankskew:/run/rankskew -v rankskew:/var/lib/rankskew rankskew
# Nothing of the build stays in it but the wheel's installation.
FROM python:3.12-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir wheels .

FROM python:3.12-slim-bookworm
LABEL org.opencontainers.image.title="rankskew" \
      org.opencontainers.image.description="Names the late rank of a multi-GPU job: the node's exporter" \
      org.opencontainers.image.licenses="Apache-2.0"
# What `docker run --gpus all` mounts for NVML; without a GPU the exporter runs all the same.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility \
    PYTHONUNBUFFERED=1
WORKDIR /opt/rankskew
COPY --from=build /src/wheels wheels
COPY deploy/image/requirements.txt .
RUN pip install --no-cache-dir --require-hashes -r requirements.txt \
    && pip install --no-cache-dir --no-deps wheels/rankskew-*.whl \
    && rm -r wheels requirements.txt
# A number, so that Kubernetes can see that it is not root. Mount the first directory and the last:
# training processes find the ingest socket in the one, and the other remembers the node's GPUs.
# Orders are given in the container itself: docker exec CONTAINER rankskew gpus release.
RUN useradd --system --uid 9917 --home-dir /opt/rankskew rankskew \
    && install --directory --owner=rankskew /run/rankskew /run/rankskew-operator /var/lib/rankskew
USER 9917
EXPOSE 9917
# With TLS in --web.config.file, replace it: this asks over plain HTTP.
HEALTHCHECK --interval=15s --timeout=5s --start-period=10s \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:9917/-/healthy', timeout=4)"]
ENTRYPOINT ["rankskew"]
CMD ["exporter"]
