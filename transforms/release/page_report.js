// The heatmap's panel and report.

  const hueOf = (i) => PAINT.css[0][Math.round(70 + (150 * (i + 0.5)) / layers.length)];
  const PLAY = "Play the sub-queries";

  /** Says what layer `next` is, and returns its name. */
  function showLayer(next) {
    const layer = layers[next];
    const name = `Sub-query ${next + 1} of ${layers.length}`;
    $("step").replaceChildren(
      h("b", null, name),
      ` asked about ${plural(layer.vector_length, "cell")}. It spent ε = ${significant(layer.epsilon)}; each count is known to ± ${whole(layer.margin)} users at 95%.`);
    [...$("rows").querySelectorAll("button")].forEach((row, i) => row.setAttribute("aria-current", String(i === next)));
    [...$("budget").querySelectorAll("i[data-layer]")].forEach((part) => part.classList.toggle("off", Number(part.dataset.layer) > next));
    return name;
  }

  const population = get("privacy.population", get("population", {}));
  const populationEpsilon = population.source === "noisy" && isNumber(population.epsilon) ? population.epsilon : 0;
  const spent = get("privacy.epsilon_spent", layers.reduce((sum, layer) => sum + layer.epsilon, populationEpsilon));
  const epsilon = get("privacy.epsilon", spent + last.remaining);

  const users = get("cohort.users", get("privacy.cohort.users", population.users ?? null));
  const pledge = () => promised("map", epsilon);

  function buildPanel() {
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
      row.addEventListener("click", () => choose(i));
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

  // ---------------------------------------------------------------- the report

  const bitsPerClient = get("communication.bits_per_client");

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
      h("div", { class: "columns" }, epsilon <= VAGUE && beliefPicture(epsilon, (high) =>
        `Suppose someone thinks it an even bet that you are in the data. However they study this map, and whatever else they know, they cannot end up more than ${high} sure that you are in it, nor more than ${high} sure that you are not.`), facts([
        ["Who is protected", `Each ${get("privacy.unit", "user")} as a whole, not just a single record`],
        ["What is compared", get("privacy.adjacency")],
        ["What each adds", get("privacy.contribution_bound")],
        ["Privacy budget", `ε = ${significant(epsilon)}, of which ${significant(spent)} is spent.${epsilon <= VAGUE ? " The factor above is e to the power ε." : ""}`],
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
    return section("Round by round", tableOf("Table of sub-queries", heads, rows, total));
  }

  // ---------------------------------------------------------------- begin

  showHeader(isNumber(users) ? `About ${large(users)} users${unsafe ? "" : ", no one in particular"}` : "Private heatmap", [
    ["Privacy budget", `ε = ${significant(epsilon)}`],
    ["Ground", `${metres(groundWidth)} × ${metres(groundHeight)}`],
    ["Finest cell", metres(groundWidth / 2 ** last.maxLevel)],
  ]);
  buildPanel();
  showReport([promise(), reading(), table()], { region: `${region.west}, ${region.south}, ${region.east}, ${region.north}`, "grid depth": depth });
  openMap();
  window.sfumato = mapHandles;
