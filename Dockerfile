# The data service. Build: docker build -t dai .
# Run:  docker run -p 127.0.0.1:8080:8080 -v "$PWD/data:/data" dai   (with the configuration in data/dai.toml)

FROM python:3.13-slim AS build
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libmariadb-dev pkg-config \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /source
ENV PIP_CONSTRAINT=/source/constraints.txt PIP_BUILD_CONSTRAINT=/source/constraints.txt PIP_NO_CACHE_DIR=1
RUN python -m venv /opt/dai
# What changes seldom first: the dependencies alone.
COPY pyproject.toml constraints.txt LICENSE ./
COPY dai/__init__.py dai/__init__.py
COPY dqp/__init__.py dqp/__init__.py
RUN /opt/dai/bin/pip install '.[mariadb]'
COPY dai dai
COPY dqp dqp
RUN /opt/dai/bin/pip install --no-deps --force-reinstall .

FROM python:3.13-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends libmariadb3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 10001 --create-home --home-dir /data dai
COPY --from=build /opt/dai /opt/dai
ENV PATH=/opt/dai/bin:$PATH PYTHONUNBUFFERED=1 DAI_SERVICE__HOST=0.0.0.0 DAI_SERVICE__PORT=8080
USER dai
WORKDIR /data
EXPOSE 8080
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:' + os.environ['DAI_SERVICE__PORT'] + '/health/live', timeout=4)"]
ENTRYPOINT ["dai"]
CMD ["serve", "--config", "/data/dai.toml"]
