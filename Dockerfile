# The control plane and the agent. One image: docker-compose.yml says which part a container plays.
FROM python:3.11-slim-bookworm

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
WORKDIR /opt/everstep

# Dependencies change less often than code: they come first, so that a rebuild after an edit takes seconds.
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY everstep/__init__.py everstep/__init__.py
RUN pip install -c constraints.txt '.[server]' && pip uninstall --yes everstep

COPY alembic.ini ./
COPY migrations migrations
COPY models models
COPY api api
COPY workers workers
COPY agent agent
COPY everstep everstep
RUN pip install --no-deps -c constraints.txt -e .

RUN useradd --system --home-dir /var/lib/everstep --create-home everstep
USER everstep
EXPOSE 8600
CMD ["python", "-m", "uvicorn", "--factory", "api.app:create_app", "--host", "0.0.0.0", "--port", "8600", "--no-proxy-headers"]
