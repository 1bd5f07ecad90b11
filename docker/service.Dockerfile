# The service, the command line and the migrations: no torch.
#   docker build -f docker/service.Dockerfile -t optimus-service:0.1.0 .
ARG PYTHON_IMAGE=python:3.11-slim
# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
# torch==2.13.0: with PyTorch, for jobs that train inside this container (the local cluster).
ARG TORCH=
ARG PIP_OPTIONS=
WORKDIR /src
# Every package in the version and with the hash of the lock (`make lock`); torch's build is the user's choice.
COPY docker/build.lock docker/service.lock docker/worker.lock ./
RUN python -m venv /opt/optimus \
    && /opt/optimus/bin/pip install --require-hashes -r service.lock \
    && if [ -n "${TORCH}" ]; then \
        /opt/optimus/bin/pip install ${PIP_OPTIONS} "${TORCH}" \
        && /opt/optimus/bin/pip install --require-hashes -r worker.lock; \
    fi \
    && python -m venv /opt/build \
    && /opt/build/bin/pip install --require-hashes -r build.lock
# The code comes after what it needs, so that its changes do not install all anew.
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
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/optimus/bin/pip install --no-deps /wheels/*.whl \
    && /opt/optimus/bin/pip check \
    && find /opt/optimus -name __pycache__ -prune -exec rm -rf {} +

# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE}
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="optimus-service" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --gid 10001 optimus \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin optimus \
    && install -d -o 10001 -g 10001 -m 0700 /var/lib/optimus
COPY --from=build /opt/optimus /opt/optimus
ENV PATH=/opt/optimus/bin:$PATH \
    OPENBLAS_NUM_THREADS=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    OPTIMUS_DATA_DIRECTORY=/var/lib/optimus
USER 10001:10001
VOLUME /var/lib/optimus
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=6 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/healthz', timeout=4)"]
ENTRYPOINT ["optimus"]
CMD ["serve"]
