# What task pods run: PyTorch and the workers, nothing of the control plane (no fastapi, no database).
#
# CPU:   docker build -f docker/worker.Dockerfile -t optimus-worker:0.1.0 .
#        (PyPI's torch brings CUDA libraries, some GB; with PIP_OPTIONS naming an index of CPU builds it does not)
# GPU:   docker build -f docker/worker.Dockerfile -t optimus-worker:0.1.0-cuda \
#            --build-arg BASE_IMAGE=nvidia/cuda:12.8.1-cudnn-runtime-ubuntu24.04 --build-arg TORCH="torch>=2.4" .
# SERVERS and coordinators, without PyTorch:
#        docker build -f docker/worker.Dockerfile -t optimus-server:0.1.0 --build-arg TORCH= --build-arg LOCK=server .
# The base needs Python 3.11 or newer, or apt-get to install it.
ARG BASE_IMAGE=python:3.11-slim
# hadolint ignore=DL3006
FROM ${BASE_IMAGE} AS build
# The pinned build of constraints.txt on CPUs; users of GPUs name theirs.
ARG TORCH=torch==2.13.0
# Every other package has the version and the hash of docker/worker.lock or docker/server.lock (`make lock`).
ARG LOCK=worker
ARG PIP_OPTIONS=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
SHELL ["/bin/sh", "-eu", "-c"]
# hadolint ignore=DL3008
RUN if ! command -v python3 >/dev/null || ! python3 -c "import ensurepip"; then \
        apt-get update \
        && apt-get install -y --no-install-recommends python3 python3-venv \
        && rm -rf /var/lib/apt/lists/*; \
    fi
WORKDIR /src
# Torch first: it is most of the image, and changes least.
RUN python3 -m venv --copies /opt/optimus \
    && if [ -n "${TORCH}" ]; then /opt/optimus/bin/pip install ${PIP_OPTIONS} "${TORCH}"; fi
COPY docker/build.lock docker/${LOCK}.lock ./
RUN /opt/optimus/bin/pip install --require-hashes -r "${LOCK}.lock" \
    && python3 -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes -r build.lock
COPY pyproject.toml README.md LICENSE alembic.ini ./
COPY migrations migrations
COPY docs/runbooks docs/runbooks
COPY client client
COPY contract contract
COPY models models
COPY scheduler scheduler
COPY simulator simulator
COPY service service
COPY workers workers
COPY cli cli
# One distribution has all packages; an image of workers keeps its own, the contract and the client.
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/optimus/bin/pip install --no-deps /wheels/*.whl \
    && site=$(/opt/optimus/bin/python -c "import sysconfig; print(sysconfig.get_paths()['purelib'])") \
    && rm -rf "$site"/optimus_models "$site"/optimus_scheduler "$site"/optimus_simulator "$site"/optimus_service "$site"/optimus_cli \
    && rm -f /opt/optimus/bin/optimus \
    && find /opt/optimus -name __pycache__ -prune -exec rm -rf {} +

# hadolint ignore=DL3006
FROM ${BASE_IMAGE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="optimus-worker" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
SHELL ["/bin/sh", "-eu", "-c"]
# hadolint ignore=DL3008
RUN if ! command -v python3 >/dev/null; then \
        apt-get update \
        && apt-get install -y --no-install-recommends python3 \
        && rm -rf /var/lib/apt/lists/*; \
    fi \
    && groupadd --gid 10001 optimus \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin optimus
COPY --from=build /opt/optimus /opt/optimus
ENV PATH=/opt/optimus/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp
USER 10001:10001
# A task has no port that one could ask: whether its interpreter still starts is what can be checked from outside.
HEALTHCHECK --interval=60s --timeout=20s --start-period=60s --retries=3 CMD ["python", "-c", "import optimus_workers"]
ENTRYPOINT ["python", "-m", "optimus_workers"]
