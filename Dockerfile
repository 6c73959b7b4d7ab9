# docker build -t daskml-dist .
# docker run --rm --cap-add SYS_PTRACE daskml-dist doctor
FROM python:3.13-slim

WORKDIR /build
COPY pyproject.toml README.md LICENSE CITATION.cff ./
COPY daskml_dist ./daskml_dist
RUN pip install --no-cache-dir ".[dataframe,export,serve,viz]" && rm -rf /build

# Rows and models of the host: docker run -v "$PWD:/work" ...
WORKDIR /work
RUN useradd --create-home fit
USER fit
ENTRYPOINT ["python", "-m", "daskml_dist"]
CMD ["--help"]
