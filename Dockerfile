# Two stages: a wheel built with a compiler, and an image that has none.
FROM python:3.11-slim-bookworm AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY requirements/ requirements/
# The tested set, with hashes: what runs into a directory of its own that the second stage takes over whole, what builds
# beside it.
RUN python -m venv /opt/warmlog \
    && /opt/warmlog/bin/pip install --no-cache-dir --require-hashes -r requirements/secure.lock \
    && python -m venv /opt/build \
    && /opt/build/bin/pip install --no-cache-dir --require-hashes -r requirements/runtime.lock -r requirements/build.lock
COPY pyproject.toml setup.py README.md LICENSE ./
COPY protocol/ protocol/
COPY broker/ broker/
COPY warmlog/ warmlog/
COPY pyspark_warmlog/ pyspark_warmlog/
# WARMLOG_COMPILED: fail where the build would otherwise go on without compiled modules. Symbols are a sixth of it all.
RUN WARMLOG_COMPILED=1 /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist . \
    && /opt/warmlog/bin/pip install --no-cache-dir --no-deps dist/*.whl \
    && /opt/warmlog/bin/pip uninstall --yes pip setuptools \
    && find /opt/warmlog -name '*.so*' -exec strip --strip-unneeded {} +

FROM python:3.11-slim-bookworm
LABEL org.opencontainers.image.title="warmlog" \
      org.opencontainers.image.description="A log broker with Kafka's storage engine" \
      org.opencontainers.image.licenses="Apache-2.0"
RUN useradd --uid 1000 --user-group --no-create-home --home-dir /data warmlog \
    && install --directory --mode=0700 --owner=warmlog --group=warmlog /data /secrets
COPY --from=build /opt/warmlog /opt/warmlog
ENV PATH=/opt/warmlog/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER warmlog
VOLUME /data
# What --secure makes: --secrets-dir /secrets
VOLUME /secrets
# native, kafka, http
EXPOSE 9091 9092 9099
# No curl in a slim image: the broker's own Python asks, past any proxy that the environment names.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.build_opener(u.ProxyHandler({})).open('http://127.0.0.1:9099/healthz', timeout=2)"]
ENTRYPOINT ["warmlog"]
# Settings come from the environment (WARMLOG_LOG_SEGMENT_BYTES) or a mounted file (--config); addresses stand here.
CMD ["serve", "--data-dir", "/data", "--kafka", "0.0.0.0:9092", "--native", "0.0.0.0:9091", "--http", "0.0.0.0:9099"]
