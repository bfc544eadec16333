// Pieces of a report that every page has.

  const unsafe = get("privacy.randomness.safe", true) === false;
  const randomness = (source) => (unsafe ? "a seed that anybody can guess: not private"
    : { "operating system": "a secret key from the operating system", "key file": "a secret key from a file: private as long as it stays secret" }[source] ?? source);
  const facts = (pairs) => h("dl", { class: "facts" }, pairs.filter((pair) => pair && pair[1] !== null && pair[1] !== undefined).map(([term, value]) => [h("dt", null, term), h("dd", null, value)]));
  const section = (title, ...children) => h("section", null, title && h("h2", null, title), ...children);
  const paragraph = (...words) => h("p", null, ...words);
  const written = (value) => (value !== null && typeof value === "object" ? JSON.stringify(value) : String(value));
  const list = (items) => h("ul", null, items.map((item) => h("li", null, written(item))));
  const listOf = (path) => {
    const value = get(path, get(`privacy.${path}`, []));
    return Array.isArray(value) ? value : [value];
  };

  /** A table that scrolls sideways where it must; the first cell of a row is its name. */
  function tableOf(label, heads, rows, total = null) {
    return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": label }, h("table", null,
      h("thead", null, h("tr", null, heads.map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", null, rows.map((row) => h("tr", null, row.map((text) => h("td", null, text))))),
      total && h("tfoot", null, h("tr", null, total.map((text) => h("td", null, text))))));
  }
  function fold(title, values) {
    const entries = values && typeof values === "object" ? Object.entries(values) : [];
    return entries.length ? h("details", null, h("summary", null, title), h("div", { class: "wide" }, h("table", { class: "plain" }, h("tbody", null,
      entries.map(([name, value]) => h("tr", null, h("td", null, name), h("td", null, written(value)))))))) : null;
  }

  function showHeader(heading, chips) {
    const created = new Date(get("created", ""));
    const made = Number.isNaN(created.getTime()) ? null : ["Made", created.toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric", timeZone: "UTC" })];
    $("heading").textContent = heading;
    $("chips").append(...[...chips, made].filter(Boolean).map(([term, value]) => h("div", null, h("dt", null, term), h("dd", null, value))));
  }

  // A bound is rounded away from what it bounds: no promise may read better than it is.
  const ceiling = (value, digits) => Math.ceil(value * 10 ** digits - 1e-6) / 10 ** digits;
  /** e to the power epsilon, rounded up so that it stays above 1. */
  function factorUp(epsilon) {
    const factor = Math.exp(epsilon);
    const digits = factor >= 100 ? 2 - Math.floor(Math.log10(factor)) : clamp(Math.ceil(-Math.log10(Math.expm1(epsilon))), 2, 15);
    return rounded(ceiling(factor, digits), Math.max(digits, 0));
  }
  /** The surest that an even bet can become, as a percentage below 100, rounded up; and the other end. */
  function beliefEnds(epsilon) {
    const rest = 100 / (1 + Math.exp(epsilon)); // percent
    const digits = clamp(Math.ceil(-Math.log10(rest)), 1, 12);
    const low = Math.floor(rest * 10 ** digits + 1e-6) / 10 ** digits;
    return [`${rounded(low, digits)}%`, `${rounded(100 - low, digits)}%`];
  }
  const VAGUE = 10; // an epsilon above this one promises next to nothing
  /** What epsilon and delta promise, in one sentence; `page` says what was made, `chance` what delta is. */
  const promised = (page, epsilon, chance = "") => (epsilon > VAGUE
    ? `A privacy budget of ε = ${significant(epsilon)} promises next to nothing: by this ${page}, somebody may become all but certain whether you were in the data.`
    : `Whether or not you were in the data, anyone who looks at this ${page} would see nearly the same thing: no conclusion's odds can change by more than a factor of ${factorUp(epsilon)}${chance}.`);

  /** What epsilon does to an even bet, with a caption made of the upper end, and words for the bet's two ends. */
  function beliefPicture(epsilon, caption, ends = ["surely not in", "surely in"]) {
    const factor = Math.exp(epsilon);
    const [low, high] = [1 / (1 + factor), 1 - 1 / (1 + factor)];
    const [lowText, highText] = beliefEnds(epsilon);
    const placed = (element, left) => {
      element.style.left = `${100 * left}%`;
      return element;
    };
    const range = placed(h("div", { class: "range" }), low);
    range.style.width = `${100 * (high - low)}%`;
    const crowded = low < 0.14;
    const tight = high - low < 0.3; // no room for the middle's number
    const shifted = (element, share) => {
      element.style.transform = `translateX(${share}%)`;
      return element;
    };
    const [before, after] = tight ? [-100, 0] : crowded ? [0, -100] : [-50, -50];
    return h("figure", { class: "belief" },
      h("div", { class: "track", "aria-hidden": "true" }, range, placed(h("div", { class: "mark" }), 0.5)),
      h("div", { class: "ends", "aria-hidden": "true" }, h("span", null, crowded ? "" : ends[0]),
        shifted(placed(h("span", null, lowText), low), before), placed(h("span", null, tight ? "" : "50%"), 0.5), shifted(placed(h("span", null, highText), high), after),
        h("span", null, crowded ? "" : ends[1])),
      h("figcaption", null, caption(highText)));
  }

  const trusted = () => {
    const assumed = listOf("assumptions");
    return section("What must be trusted", assumed.length ? list(assumed) : paragraph("The manifest names no assumptions. Ask whoever made this release."));
  };
  const siblings = () => section("The files beside this page", h("ul", { class: "files" },
    data.files.map(([name, text]) => h("li", null, h("a", { href: name }, name), `: ${text}`))));

  /** Fills the report: what was wrong, the page's own sections, trust and files, and the small print. */
  function showReport(own, identity) {
    const warnings = [...data.problems, ...listOf("warnings")];
    $("report").append(...[
      warnings.length ? h("section", { class: "warnings" }, h("h2", null, plural(warnings.length, "warning")), list(warnings)) : null,
      ...own,
      h("div", { class: "columns" }, trusted(), siblings()),
      section(null, fold("Parameters", get("parameters")), fold("Versions", get("versions")),
        fold("This release", { "release id": get("release_id", "unknown"), job: get("job", "unknown"), created: get("created", "unknown"), ...identity })),
    ].filter(Boolean));
  }
