# The exporter's image, for one node or a DaemonSet:
#   make image
#   sudo install --directory --owner=9917 /run/rankskew
#   docker run --read-only --cap-drop=ALL --security-opt=no-new-privileges --gpus all -p 9917:9917 \
#     --tmpfs /run/rankskew-operator:uid=9917,mode=0700 \
#     -v /run/rankskew:/run/rankskew -v rankskew:/var/lib/rankskew rankskew
# Another base needs python3 with venv, and useradd: docker build --build-arg BASE=...
ARG BASE=python:3.12.14-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254

FROM ${BASE} AS build
WORKDIR /src
# Two environments, so that what builds the wheel does not reach the image.
COPY deploy/image/build-requirements.txt deploy/image/requirements.txt ./
RUN python3 -m venv /build \
    && /build/bin/pip install --no-cache-dir --require-hashes -r build-requirements.txt
RUN python3 -m venv /opt/rankskew \
    && /opt/rankskew/bin/pip install --no-cache-dir --require-hashes -r requirements.txt
COPY . .
RUN PATH=/build/bin:$PATH pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/rankskew/bin/pip install --no-cache-dir --no-deps /wheels/rankskew-*.whl \
    && /opt/rankskew/bin/pip uninstall --yes pip setuptools \
    && install deploy/image/health_check.py /opt/rankskew/

FROM ${BASE}
LABEL org.opencontainers.image.title="rankskew" \
      org.opencontainers.image.description="Names the late rank of a multi-GPU job: the node's exporter" \
      org.opencontainers.image.licenses="Apache-2.0"
# What `docker run --gpus all` mounts for NVML; the exporter also runs without a GPU.
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PATH=/opt/rankskew/bin:/usr/local/bin:/usr/sbin:/usr/bin:/bin
# The user is a number, so that Kubernetes can see that it is not root. Mount the first directory,
# where training processes find the ingest socket, and the last, which remembers the node's GPUs.
# The second is for orders in the container itself: docker exec CONTAINER rankskew control --release-gpus.
RUN useradd --system --uid 9917 --home-dir /opt/rankskew rankskew \
    && install --directory --owner=rankskew /run/rankskew /run/rankskew-operator /var/lib/rankskew
COPY --from=build /opt/rankskew /opt/rankskew
USER 9917
EXPOSE 9917
HEALTHCHECK --interval=15s --timeout=5s --start-period=10s \
    CMD ["python3", "-I", "-S", "/opt/rankskew/health_check.py"]
ENTRYPOINT ["rankskew"]
CMD ["exporter"]
