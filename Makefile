# Needs Python 3.11 or later, with venv, and make. Everything is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
REGION := 3.00,1.00,3.13,1.13
# Bytecode is kept, even where the machine says otherwise: without it each process compiles all that it imports.
export PYTHONDONTWRITEBYTECODE :=
BEAM = $$($(BIN)/python -c 'from importlib.metadata import version; print(version("apache-beam"))')
PUBLISHED_flink := beam-runners-flink-1.19-job-server
PUBLISHED_spark := beam-runners-spark-3-job-server
# The files of the engines, unless the caller names others.
ENGINES = SFUMATO_FLINK_JAR="$${SFUMATO_FLINK_JAR:-$(abspath build/flink/job-server.jar)}" \
  SFUMATO_SPARK_JAR="$${SFUMATO_SPARK_JAR:-$(abspath build/spark/job-server.jar)}" \
  SFUMATO_PRISM="$${SFUMATO_PRISM:-$(abspath build/prism/prism)}"
MAVEN_COPY := org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy

.PHONY: demo docs web tuner test test-all test-exhaustive test-times test-airflow lock flink-jar spark-jar java-rows go-rows prism test-engines check bench clean

# About 6 minutes on 2 busy cores, and 120 MB in demo/. docs/tutorials/ explain each command.
demo: $(VENV)/.installed
	@echo "Logs of one million users of Penumbra, an invented city, and the private heatmap of them:"
	$(BIN)/sfumato synth --users 1000000 --output demo/logs --basemap demo/penumbra.geojson --overwrite
	$(BIN)/sfumato heatmap --input 'demo/logs/*.parquet' --output demo/release --basemap demo/penumbra.geojson --overwrite \
	  --region $(REGION) --depth 10 --epsilon 1
	@echo "Open demo/release/index.html in a browser. The other jobs follow."
	$(BIN)/sfumato heatmap --input 'demo/logs/*.parquet' --output demo/rates --basemap demo/penumbra.geojson --overwrite \
	  --region $(REGION) --depth 10 --epsilon 1 --auxiliary infected --refine interval
	$(BIN)/sfumato heatmap --input 'demo/logs/*.parquet' --output demo/next_day --basemap demo/penumbra.geojson --overwrite \
	  --region $(REGION) --depth 10 --epsilon 1 --warm_start demo/release
	$(BIN)/sfumato heatmap --input 'demo/logs/*.parquet' --output demo/hours --basemap demo/penumbra.geojson --overwrite \
	  --region $(REGION) --depth 8 --epsilon 1 --time_column timestamp --slots hour
	$(BIN)/sfumato zones --input 'demo/logs/*.parquet' --output demo/zones --basemap demo/penumbra.geojson --overwrite \
	  --h3 8 --region $(REGION) --epsilon 1 --auxiliary infected
	$(BIN)/sfumato zones --release demo/release --h3 8 --output demo/h3.csv --overwrite
	$(BIN)/sfumato synth --trips --users 100000 --output demo/trips --overwrite
	$(BIN)/sfumato flows --input 'demo/trips/*.parquet' --output demo/flows --basemap demo/penumbra.geojson --overwrite \
	  --region $(REGION) --origin origin_longitude,origin_latitude --destination destination_longitude,destination_latitude
	$(BIN)/sfumato export demo/release --output demo/map.geojson --overwrite
	$(BIN)/sfumato histogram --input 'demo/logs/*.parquet' --output demo/histogram --basemap demo/penumbra.geojson --overwrite \
	  --region $(REGION) --cells 8 --epsilon 1 --delta 1e-8
	$(BIN)/sfumato hotspots --input 'demo/logs/*.parquet' --output demo/hotspots --basemap demo/penumbra.geojson --overwrite \
	  --region $(REGION) --depth 9 --epsilon 1 --delta 1e-8 --top 50
	$(BIN)/sfumato quantiles --input 'demo/logs/*.parquet' --output demo/quantiles --overwrite \
	  --column km_from_home --range -1,15 --quantiles 0.5,0.9,0.99 --ranges 0:1,1:5,5:15 --epsilon 1 --delta 1e-8
	$(BIN)/sfumato moments --input 'demo/logs/*.parquet' --output demo/moments --overwrite \
	  --column km_from_home --bits 16 --fraction_bits 8 --statistics mean,variance --epsilon 2
	$(BIN)/sfumato moments --input 'demo/logs/*.parquet' --output demo/moments_central --overwrite \
	  --column km_from_home --trust central --statistics mean,variance,count --epsilon 2
	$(BIN)/sfumato moments --input 'demo/logs/*.parquet' --output demo/moments_map --basemap demo/penumbra.geojson --overwrite \
	  --column km_from_home --bits 16 --fraction_bits 8 --epsilon 2 --cells 4 --region $(REGION)
	$(BIN)/sfumato ranges build --input 'demo/logs/*.parquet' --output demo/ranges --basemap demo/penumbra.geojson --overwrite \
	  --region $(REGION) --epsilon 0.1
	$(BIN)/python -c "import pandas; pandas.DataFrame({'x': [3.08, 3.09], 'y': [1.08, 1.07], 'size': [50, 100]}).to_parquet('demo/squares.parquet')"
	$(BIN)/sfumato ranges answer --model demo/ranges --queries demo/squares.parquet --output demo/answers.parquet --overwrite
	$(BIN)/sfumato plan --users 1000000 --epsilon 1
	rm -rf demo/nightly
	$(BIN)/sfumato synth --users 100000 --days 2026-11-04:2026-11-07 --output demo/nightly/logs
	$(BIN)/sfumato key new demo/nightly/key
	sed 's#^options: .*#&\n  basemap: ../penumbra.geojson#' runner_configs/schedules/refresh.yaml >demo/nightly/refresh.yaml
	$(BIN)/sfumato refresh --config demo/nightly/refresh.yaml --date 2026-11-04
	$(BIN)/sfumato refresh --config demo/nightly/refresh.yaml --date 2026-11-04
	$(BIN)/sfumato refresh --config demo/nightly/refresh.yaml --backfill 2026-11-05:2026-11-07
	$(BIN)/sfumato changes demo/nightly/published/releases/2026-11-06 demo/nightly/published/releases/2026-11-07 \
	  --output demo/changes --overwrite
	$(BIN)/sfumato ledger show --ledger demo/nightly/ledger.db
	$(BIN)/sfumato ledger verify --ledger demo/nightly/ledger.db --releases demo/nightly/published
	@echo "Open demo/release/index.html in a browser, and those in demo/rates, demo/hours, demo/zones, demo/flows, demo/next_day, demo/histogram, demo/hotspots, demo/quantiles,"
	@echo "demo/moments, demo/moments_central, demo/moments_map, demo/ranges, demo/changes, demo/nightly/published."

# The documents as a site. Search needs a server, such as `python -m http.server --directory build/site`.
docs: $(VENV)/.documented
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "Open build/site/index.html in a browser."

# The script and style of all pages, from web/ into transforms/report/bundle, and the client of phones into build/client.
# Needs Node 20 or later.
web: $(VENV)/.developed web/node_modules/.package-lock.json
	$(BIN)/python web/views_schema.py >web/views.schema.json
	cd web && npm run --silent types && npm run --silent lint && npm run --silent test && npm run --silent build && npm run --silent client

web/node_modules/.package-lock.json: web/package.json web/package-lock.json
	cd web && npm ci --no-audit --no-fund

# How a tuner of range queries is made: here on a synthetic city, which is good for the example alone.
tuner: $(VENV)/.installed
	$(BIN)/sfumato synth --users 400000 --seed 1 --region=$(REGION) --output demo/tuner/wide --overwrite
	$(BIN)/sfumato synth --users 400000 --seed 2 --region=3.03,1.03,3.10,1.10 --output demo/tuner/near --overwrite
	$(BIN)/sfumato ranges tune --public 'demo/tuner/wide/*.parquet' 'demo/tuner/near/*.parquet' --region=$(REGION) \
	  --region=3.03,1.03,3.10,1.10 --sizes 25,100 100,400 --output demo/tuner/tuner.npz --overwrite

# Unit tests, jobs on Beam's local runner, and attacks, with the checks of style and types beside them.
test: $(VENV)/.developed
	mkdir -p build
	@$(MAKE) --no-print-directory check >build/check.log 2>&1 & checks=$$!; tests=0; \
	$(BIN)/python -m pytest -n auto --dist worksteal || tests=$$?; \
	wait $$checks || { cat build/check.log; echo "the checks failed (make check)"; exit 1; }; exit $$tests

# All that CI tries without other engines: the tests of `make test`, those in browsers, and the slow ones.
test-all: $(VENV)/.developed
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not engines and not exhaustive' tests

# More seeds of what other tests try with a few: kills, planted faults, schedules.
test-exhaustive: $(VENV)/.developed
	$(BIN)/python -m pytest -n auto --dist worksteal -m exhaustive tests

# Processor seconds by test file.
test-times: $(VENV)/.developed
	$(BIN)/python -m pytest -n auto --dist worksteal -p tests.cpu_times -m 'not engines and not exhaustive' tests

# Every job on Flink, Spark and Prism. The tests of an engine skip, and say why, where its file could not be made.
test-engines: $(VENV)/.developed
	for file in flink-jar spark-jar java-rows go-rows prism; do $(MAKE) $$file || true; done
	$(ENGINES) $(BIN)/python -m pytest -n auto --dist loadgroup -m engines -rs $$(grep -rl --include='test_*.py' mark.engines tests)

# The versions and hashes of all that Dataflow's workers install. Run it after a change of pyproject.toml's dependencies.
lock: $(VENV)/.developed
	$(BIN)/uv pip compile pyproject.toml --extra gcp --extra neural --python-version 3.11 --upgrade --quiet \
	  --python-platform x86_64-manylinux_2_28 --generate-hashes --no-annotate \
	  --custom-compile-command 'make lock' --output-file runner_configs/dataflow/requirements.txt

# Job servers: the one that is published with the installed Beam, one large jar; where the repository has none, a thin
# jar beside the parts of an older one, which understands the same jobs. Needs Maven.
flink-jar: build/flink/job-server.jar
spark-jar: build/spark/job-server.jar

build/%/job-server.jar: runner_configs/%/pom.xml | $(VENV)/.installed
	mkdir -p build/$*
	@echo "Maven fetches the job server for $* of Beam $(BEAM): about a minute."
	@artifact=$(PUBLISHED_$*) && \
	if mvn --batch-mode --quiet $(MAVEN_COPY) -Dartifact=org.apache.beam:$$artifact:$(BEAM) \
	  -Dmdep.stripVersion=true -DoutputDirectory=$(abspath build/$*) >build/$*/published.log 2>&1; \
	then mv build/$*/$$artifact.jar $@; \
	else echo "There is no $$artifact $(BEAM) (build/$*/published.log has the reason). Maven takes the job server of Beam" \
	  "$$(sed -n 's:.*<beam>\(.*\)</beam>.*:\1:p' $<) in its place: older, for the same protocol, one to two minutes." && \
	  mvn --batch-mode --quiet --file $< package; fi
	touch $@

# A Java pipeline with one private step of sfumato.beam. Needs Maven and a JDK of 11 or later.
java-rows: build/java/classes/ZonesOfRides.class

build/java/classes/ZonesOfRides.class: runner_configs/java/pom.xml runner_configs/java/ZonesOfRides.java
	@echo "Maven fetches Beam's Java SDK, 54 MB: about a minute."
	mvn --batch-mode --quiet --file $< compile
	touch $@

# A Go program with a private step of sfumato.beam, for the guide and the tests. Needs Go 1.21 or later.
go-rows: build/go/zones_of_rides

build/go/zones_of_rides: runner_configs/go/zones_of_rides.go | $(VENV)/.installed
	@echo "Go fetches and compiles Beam's Go SDK and prints nothing until it is done: about 2 minutes."
	mkdir -p build/go && cp $< build/go
	@version=$(BEAM); cd build/go && rm -f go.mod go.sum && { go mod init zones_of_rides && \
	  go get github.com/apache/beam/sdks/v2@v$$version && go mod tidy && go build -o zones_of_rides .; } >build.log 2>&1 || \
	{ cat build.log; exit 1; }

# Beam's local engine, of the installed Beam's version. Needs Go 1.21 or later, which fetches the Go that it needs.
prism: build/prism/prism

build/prism/prism: | $(VENV)/.installed
	@echo "Go fetches and compiles Prism of Beam $(BEAM) and prints nothing until it is done: about 6 minutes on 2 cores."
	GOBIN=$(abspath build/prism) go install github.com/apache/beam/sdks/v2/go/cmd/prism@v$(BEAM)

# The example DAG in an Airflow of its own (some 300 MB in build/airflow).
test-airflow: $(VENV)/.developed build/airflow/.installed
	$(BIN)/python -m pytest tests/slow/test_schedules.py -k airflow

build/airflow/.installed:
	$(PYTHON) -m venv build/airflow
	build/airflow/bin/python -m pip install --quiet 'apache-airflow>=3.3,<4' apache-airflow-providers-standard
	touch $@

# Ruff, and mypy on a tree of links that shows the folders as the installed package `sfumato`.
check: $(VENV)/.developed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.language
	mkdir -p build/types/sfumato
	cd build/types/sfumato && ln -sf ../../../api/*.py .
	ln -sfn ../../../schemas build/types/sfumato/schemas
	ln -sfn ../../../transforms build/types/sfumato/transforms
	ln -sfn ../../../pipelines build/types/sfumato/pipelines
	cd build/types && ../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../mypy -p sfumato

bench: $(VENV)/.benched
	$(BIN)/python -m benchmarks.speed --data bench_data
	$(BIN)/python -m benchmarks.central_peers --data bench_data
	$(BIN)/python -m benchmarks.accountant
	$(BIN)/python -m benchmarks.month --plot docs/images
	$(ENGINES) $(BIN)/python -m benchmarks.runners --data bench_data
	$(BIN)/python -m benchmarks.histograms
	$(BIN)/python -m benchmarks.emd_rate
	if [ -n "$$SFUMATO_DATA" ]; then $(BIN)/python -m benchmarks.comparison && $(BIN)/python -m benchmarks.few_users \
	  && $(BIN)/python -m benchmarks.hotspots && $(BIN)/python -m benchmarks.accuracy \
	  && $(BIN)/python -m benchmarks.several_locations && $(BIN)/python -m benchmarks.rates \
	  && $(BIN)/python -m benchmarks.range_queries cabs && $(BIN)/python -m benchmarks.range_queries metres \
	  && $(BIN)/python -m benchmarks.range_queries speed && $(BIN)/python -m benchmarks.param_select; fi
	$(BIN)/python -m benchmarks.accuracy --choices

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.installed: $(BIN)/python pyproject.toml setup.py
	$(BIN)/python -m pip install --quiet -e '.[neural]'
	touch $@

$(VENV)/.developed: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -e '.[test,dev,geo]'
	touch $@

$(VENV)/.documented: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	touch $@

$(VENV)/.benched: $(VENV)/.developed
	$(BIN)/python -m pip install --quiet -e '.[bench]'
	touch $@

clean:
	rm -rf $(VENV) build demo
