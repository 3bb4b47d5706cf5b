# A training image with the probe: demo/train.py on CPUs. Your own needs one line: pip install, of a release or a checkout.
# Packages are pinned by version, not by hash: which torch wheel is taken depends on TORCH_INDEX.
ARG BASE=python:3.12.14-slim-bookworm@sha256:782412e85d0f0984994c290652577d4018aff08145c85b262bb63dc0c7522254

FROM ${BASE} AS build
WORKDIR /src
COPY deploy/image/build-requirements.txt ./
RUN python3 -m venv /build \
    && /build/bin/pip install --no-cache-dir --require-hashes -r build-requirements.txt
COPY . .
RUN PATH=/build/bin:$PATH pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels .

FROM ${BASE}
# PyPI's torch brings gigabytes of CUDA libraries; this index has the one for CPUs.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PYTHONUNBUFFERED=1 \
    PATH=/opt/demo/bin:/usr/local/bin:/usr/sbin:/usr/bin:/bin
COPY demo/requirements.txt ./
RUN python3 -m venv /opt/demo \
    && pip install --no-cache-dir --extra-index-url ${TORCH_INDEX} -r requirements.txt
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir --no-deps /wheels/rankskew-*.whl
COPY demo/train.py /demo/
# Any user but root; the exporter counts the ranks as this user's.
USER 1000
