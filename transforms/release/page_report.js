  // ---------------------------------------------------------------- panel

  const slider = $("slider");
  let playing = 0;
  const hueOf = (i) => PAINT.css[0][Math.round(70 + (150 * (i + 0.5)) / layers.length)];

  function setLayer(index) {
    const next = clamp(Math.round(Number(index)) || 0, 0, layers.length - 1);
    if (next !== state.layer && !still.matches && !moving()) {
      const { sheet, ctx: pen } = offscreen();
      sheet.width = canvas.width;
      sheet.height = canvas.height;
      pen.drawImage(canvas, 0, 0);
      dissolve = { sheet };
    }
    state.layer = next;
    const layer = layers[next];
    slider.value = next;
    slider.setAttribute("aria-valuetext", `Sub-query ${next + 1} of ${layers.length}`);
    $("step").replaceChildren(
      h("b", null, `Sub-query ${next + 1} of ${layers.length}`),
      ` asked about ${plural(layer.vector_length, "cell")}. It spent ε = ${significant(layer.epsilon)}; each count is known to ± ${whole(layer.margin)} users at 95%.`);
    [...$("rows").querySelectorAll("button")].forEach((row, i) => row.setAttribute("aria-current", String(i === next)));
    [...$("budget").querySelectorAll("i[data-layer]")].forEach((part) => part.classList.toggle("off", Number(part.dataset.layer) > next));
    request();
  }
  function setGrid(on) {
    state.grid = $("grid").checked = Boolean(on);
    request();
  }
  function setFade(on) {
    state.fade = $("fade").checked = Boolean(on);
    request();
  }
  function play(on) {
    clearInterval(playing);
    playing = 0;
    $("play").setAttribute("aria-label", on ? "Pause" : "Play the sub-queries");
    $("play-shape").setAttribute("d", on ? "M4.5 3h2v10h-2zM9.5 3h2v10h-2z" : "M5 3l8 5-8 5z");
    if (!on) return;
    if (state.layer >= layers.length - 1) setLayer(0);
    playing = setInterval(() => {
      setLayer(state.layer + 1);
      if (state.layer >= layers.length - 1) play(false);
    }, 1400);
  }

  const population = get("privacy.population", get("population", {}));
  const populationEpsilon = population.source === "noisy" && isNumber(population.epsilon) ? population.epsilon : 0;
  const spent = get("privacy.epsilon_spent", layers.reduce((sum, layer) => sum + layer.epsilon, populationEpsilon));
  const epsilon = get("privacy.epsilon", spent + last.remaining);

  const users = get("cohort.users", get("privacy.cohort.users", population.users ?? null));
  const factor = Math.exp(epsilon);
  const unsafe = get("privacy.randomness.safe", true) === false;
  const pledge = () => `Whether or not you were in the data, anyone who looks at this map would see nearly the same thing: no conclusion's odds can change by more than a factor of ${significant(factor)}.`;

  function buildPanel() {
    slider.max = layers.length - 1;
    slider.disabled = $("play").disabled = layers.length < 2;
    slider.addEventListener("input", () => {
      play(false);
      setLayer(slider.value);
    });
    $("play").addEventListener("click", () => play(!playing));
    $("grid").addEventListener("change", (event) => setGrid(event.target.checked));
    $("fade").addEventListener("change", (event) => setFade(event.target.checked));
    const most = Math.max(...layers.map((layer) => layer.epsilon), 1e-12);
    const bar = (share, colour) => {
      const part = h("i");
      part.style.width = `${100 * clamp(share, 0, 1)}%`;
      part.style.background = colour;
      return part;
    };
    layers.forEach((layer, i) => {
      const part = bar(layer.epsilon / epsilon, hueOf(i));
      part.dataset.layer = i;
      part.title = `Sub-query ${i + 1}: ε ${significant(layer.epsilon)}`;
      $("budget").append(part);
      const row = h("button", { type: "button", title: `Show sub-query ${i + 1}`, "aria-label": `Sub-query ${i + 1}: epsilon ${significant(layer.epsilon)}, ${plural(layer.vector_length, "cell")}` },
        h("span", null, String(i + 1)), h("span", { class: "bar" }, bar(Math.max(layer.epsilon / most, 0.012), hueOf(i))),
        h("span", { class: "number" }, `ε ${significant(layer.epsilon)}`), h("span", { class: "number" }, plural(layer.vector_length, "cell")));
      row.addEventListener("click", () => {
        play(false);
        setLayer(i);
      });
      $("rows").append(h("li", null, row));
    });
    if (populationEpsilon) {
      const part = bar(populationEpsilon / epsilon, "#6f6a80");
      part.title = `Number of users: ε ${significant(populationEpsilon)}`;
      $("budget").prepend(part);
    }
    const text = `${significant(spent)} of ${significant(epsilon)} spent, ${significant(Math.max(epsilon - spent, 0))} left`;
    $("budget").setAttribute("aria-label", text);
    $("budget-text").textContent = populationEpsilon ? `${text}; ${significant(populationEpsilon)} of it on the number of users` : text;
    $("pledge").textContent = unsafe ? "Made with a demonstration seed, this map protects no one." : pledge();
  }

  function buildLegend() {
    const ramp = Array.from({ length: 33 }, (_, i) => PAINT.css[0][Math.round((255 * i) / 32)]);
    $("ramp").style.background = `linear-gradient(90deg, ${ramp.join(",")})`;
    const ticks = [[0, "0"]];
    const room = 45 / Math.max($("ramp").clientWidth, 1);
    for (let power = Math.floor(Math.log10(knee)); power <= Math.log10(topDensity); power++) {
      for (const density of [10 ** power, 3 * 10 ** power]) {
        const share = shadeOf(density);
        if (density < topDensity && share < 0.95 && share - ticks[ticks.length - 1][0] > room) ticks.push([share, significant(density)]);
      }
    }
    $("ticks").replaceChildren(...ticks.map(([share, text]) => {
      const tick = h("span", null, text);
      tick.style.left = `${100 * share}%`;
      return tick;
    }));
    const grey = PAINT.css[1][70];
    $("swatch").style.background = `repeating-linear-gradient(135deg, ${grey} 0 3px, #5b5763 3px 4px)`;
  }

  // ---------------------------------------------------------------- the report

  const bitsPerClient = get("communication.bits_per_client");

  function buildHeader() {
    $("heading").textContent = isNumber(users) ? `About ${large(users)} users${unsafe ? "" : ", no one in particular"}` : "Private heatmap";
    const created = new Date(get("created", ""));
    const chips = [
      ["Privacy budget", `ε = ${significant(epsilon)}`],
      ["Ground", `${metres(groundWidth)} × ${metres(groundHeight)}`],
      ["Finest cell", metres(groundWidth / 2 ** last.maxLevel)],
      Number.isNaN(created.getTime()) ? null : ["Made", created.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric", timeZone: "UTC" })],
    ];
    $("chips").append(...chips.filter(Boolean).map(([term, value]) => h("div", null, h("dt", null, term), h("dd", null, value))));
  }

  function beliefPicture() {
    const [low, high] = [1 / (1 + factor), factor / (1 + factor)];
    const placed = (element, left) => {
      element.style.left = `${100 * left}%`;
      return element;
    };
    const range = placed(h("div", { class: "range" }), low);
    range.style.width = `${100 * (high - low)}%`;
    const crowded = low < 0.14;
    return h("figure", { class: "belief" },
      h("div", { class: "track", "aria-hidden": "true" }, range, placed(h("div", { class: "mark" }), 0.5)),
      h("div", { class: "ends", "aria-hidden": "true" }, h("span", null, crowded ? "" : "surely not in"),
        placed(h("span", null, percent(low)), low), placed(h("span", null, "50%"), 0.5), placed(h("span", null, percent(high)), high),
        h("span", null, crowded ? "" : "surely in")),
      h("figcaption", null, `Suppose someone thinks it an even bet that you are in the data. However they study this map, and whatever else they know, they cannot end up more than ${percent(high)} sure that you are in it, nor more than ${percent(high)} sure that you are not.`));
  }
  const facts = (pairs) => h("dl", { class: "facts" }, pairs.filter((pair) => pair && pair[1] !== null && pair[1] !== undefined).map(([term, value]) => [h("dt", null, term), h("dd", null, value)]));
  const section = (title, ...children) => h("section", null, title && h("h2", null, title), ...children);

  function promise() {
    const source = get("privacy.randomness.source");
    const delta = get("privacy.delta", 0);
    const samplingRate = get("cohort.sampling_rate", get("privacy.cohort.sampling_rate"));
    const lead = unsafe
      ? "This release keeps no one's secret: its noise came from a seed that is known. With a secret key, the following would hold."
      : null;
    return section("What this map promises",
      lead && h("p", { class: "lead" }, lead),
      h("p", { class: "lead" }, pledge()),
      h("div", { class: "columns" }, beliefPicture(), facts([
        ["Who is protected", `Each ${get("privacy.unit", "user")} as a whole, not just a single record`],
        ["What is compared", get("privacy.adjacency")],
        ["What each adds", get("privacy.contribution_bound")],
        ["Privacy budget", `ε = ${significant(epsilon)}, of which ${significant(spent)} is spent. The factor above is e to the power ε.`],
        ["Chance of failure", delta > 0 ? `δ = ${significant(delta)}: the bound may fail with about this chance` : "none: δ = 0, given which devices take part"],
        ["Source of the noise", source && `${source}${unsafe ? " (known to others: not private)" : source === "key file" ? ": private as long as the key stays secret" : ""}`],
        ["Number of users", population.source === "noisy" ? `estimated with noise of its own, ± ${whole(1.96 * (population.stddev ?? population.noise_stddev ?? 0))} at 95%, for ε = ${significant(populationEpsilon)}` : population.source === "public" ? "public knowledge, given to the job" : null],
        ["Share of users asked", isNumber(samplingRate) ? percent(samplingRate) : null],
      ])));
  }

  function reading() {
    const lostCells = last.lost.reduce((sum, flag) => sum + flag, 0);
    return h("div", { class: "columns" },
      section("How to read it",
        h("p", null, `Every count carries random noise, drawn once. In the final map it is ± ${whole(last.margin)} users at 95%: of a hundred cells, about ninety-five are off by less. The noise is the same for a small cell and a large one, so crowded places are known well and quiet places poorly.`),
        h("p", null, `${whole(lostCells)} of the ${whole(last.n)} cells are lost in noise: they may hold a few users or none. The map hatches them. Counts below zero are noise too; they are left as they came, because raising them to zero would tilt every total upward.`),
        h("p", null, "Cells are small where many users are and large where few are. A cell that has been divided in part stands for what its finer cells leave over.")),
      section("How it was made",
        h("p", null, `The map was found in ${plural(layers.length, "round")}. Each round asked every user taking part which cell they were in, added up the answers with noise, and used only the noisy sums to choose where to look more closely next.`),
        h("p", null, `Users answered in ${plural(last.shards, "group")}. A group's sum has its noise in it before anyone sees it, and a group in which too many fell silent is thrown away unread.`),
        isNumber(bitsPerClient) && h("p", null, `On phones, all rounds together would cost each one ${bytes(bitsPerClient)} of upload${isNumber(get("communication.vector_entries")) ? ` for ${plural(get("communication.vector_entries"), "number")}` : ""}.`)));
  }

  function table() {
    const given = get("sub_queries", get("privacy.sub_queries", []));
    const rows = layers.map((layer, i) => {
      const query = Array.isArray(given) ? given.find((item) => item && item.index === layer.index) || given[i] || {} : {};
      const bits = query.bits_per_client;
      return [String(i + 1), significant(layer.epsilon), whole(layer.vector_length), `± ${whole(layer.margin)}`, significant(layer.stddev),
        whole(layer.shards), whole(layer.shards_lost), isNumber(query.modulus) ? query.modulus.toLocaleString("en") : "–", isNumber(bits) ? bytes(bits) : "–"];
    });
    const heads = ["Round", "ε spent", "Cells asked", "Noise at 95%", "Noise, std. dev.", "Groups", "Groups lost", "Modulus", "Sent per phone"];
    const total = ["All", significant(spent - populationEpsilon), whole(layers.reduce((sum, layer) => sum + layer.vector_length, 0)), "", "", "",
      whole(layers.reduce((sum, layer) => sum + layer.shards_lost, 0)), "", isNumber(bitsPerClient) ? bytes(bitsPerClient) : "–"];
    return section("Round by round", h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": "Table of sub-queries" }, h("table", null,
      h("thead", null, h("tr", null, heads.map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", null, rows.map((row) => h("tr", null, row.map((text) => h("td", null, text))))),
      h("tfoot", null, h("tr", null, total.map((text) => h("td", null, text)))))));
  }

  const written = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));
  function fold(title, values) {
    const entries = values && typeof values === "object" ? Object.entries(values) : [];
    return entries.length ? h("details", null, h("summary", null, title), h("div", { class: "wide" }, h("table", { class: "plain" }, h("tbody", null,
      entries.map(([name, value]) => h("tr", null, h("td", null, name), h("td", null, written(value)))))))) : null;
  }
  const list = (items) => h("ul", null, items.map((item) => h("li", null, written(item))));

  function buildReport() {
    const listOf = (path) => { const value = get(path, get(`privacy.${path}`, [])); return Array.isArray(value) ? value : [value]; };
    const warnings = [...data.problems, ...listOf("warnings")];
    const assumed = listOf("assumptions");
    $("report").append(...[
      warnings.length ? h("section", { class: "warnings" }, h("h2", null, plural(warnings.length, "warning")), list(warnings)) : null,
      promise(),
      reading(),
      table(),
      h("div", { class: "columns" },
        section("What must be trusted", assumed.length ? list(assumed) : h("p", null, "The manifest names no assumptions. Ask whoever made this release.")),
        section("The files beside this page", h("ul", { class: "files" },
          [["cells.parquet", "one row for each cell: bounds, estimated users, noise, density, shape"],
            ["density.npy", "the density on the finest grid, row 0 in the north, adding up to 1"],
            ["manifest.json", "the guarantee, every parameter, every version"]]
            .map(([name, text]) => h("li", null, h("a", { href: name }, name), `: ${text}`))))),
      section(null, fold("Parameters", get("parameters")), fold("Versions", get("versions")),
        fold("This release", { "release id": get("release_id", "unknown"), job: get("job", "unknown"), created: get("created", "unknown"), region: `${region.west}, ${region.south}, ${region.east}, ${region.north}`, "grid depth": depth })),
    ].filter(Boolean));
  }

  // ---------------------------------------------------------------- begin

  buildHeader();
  buildPanel();
  buildReport();
  measure();
  setLayer(state.layer);
  new ResizeObserver(measure).observe(canvas);

  window.sfumato = {
    layers, setLayer, setGrid, setFade, lookup,
    /** Shows `scale` times the whole region's size, centred on (cx, cy) in 0..1 from the north-west corner, at once. */
    zoomTo: (scale, cx, cy) => moveTo({ scale, cx, cy }, false),
    get layer() { return state.layer; },
    get view() { return { ...view }; },
    /** Canvas position, in CSS pixels, of a place in degrees. */
    project: (lon, lat) => toScreen((lon - region.west) / width, (region.north - lat) / height),
  };
})();
