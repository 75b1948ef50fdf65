# Orion as an image. The base: any Debian or Ubuntu with Python 3.11 or later and its venv.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
USER root
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --quiet --no-cache-dir uv && python3 -m venv --without-pip /opt/orion
# A base with a CA of its own has it among the system's certificates.
ENV VIRTUAL_ENV=/opt/orion UV_SYSTEM_CERTS=1 UV_NO_CACHE=1 UV_LINK_MODE=copy
WORKDIR /source
COPY container/requirements.lock ./
RUN /opt/uv/bin/uv pip sync --quiet --require-hashes requirements.lock
COPY pyproject.toml README.md ./
COPY agent_scripts agent_scripts
COPY sandbox_runtime sandbox_runtime
COPY app app
# The file system is read-only later: what is not compiled now is compiled at each start, which takes three times as long.
RUN /opt/uv/bin/uv pip install --quiet --no-deps . \
 && /opt/orion/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/orion/lib && rm -f /opt/orion/.lock
COPY container/healthcheck.py /opt/orion/

FROM ${BASE}
USER root
# Not 10001, which sandboxes run as.
RUN echo "orion:x:10002:10002:Orion:/var/lib/orion:/usr/sbin/nologin" >> /etc/passwd \
 && echo "orion:x:10002:" >> /etc/group \
 && install -d -o 10002 -g 10002 -m 700 /var/lib/orion && install -d /etc/orion
COPY --from=build /opt/orion /opt/orion
ENV PATH=/opt/orion/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1 \
    ORION_HOST=0.0.0.0 ORION_LOG_FORMAT=json ORION_PORT=3000 ORION_STATE_DIR=/var/lib/orion
USER 10002:10002
# Where orion.toml belongs.
WORKDIR /etc/orion
EXPOSE 3000
HEALTHCHECK --interval=4s --timeout=4s --retries=4 --start-period=60s \
    CMD ["/opt/orion/bin/python", "-I", "-S", "/opt/orion/healthcheck.py"]
ENTRYPOINT ["orion"]
CMD ["serve"]
