// The page of nightly releases: the two nights that are chosen, their maps and words. page_index_time.js has the timeline,
// page_index_maps.js loads maps and compares them.

  const mapped = nights.filter((night) => night.map);
  const dataset = get("release_id", "");
  const RELATIVE = { before: [1, "the night before"], week: [7, "a week before"] }; // days
  const rows = [...$("all").tBodies[0].rows].reverse(); // of the table, in the nights' order
  let mode = "before"; // a name in RELATIVE, or fixed: A stays when B moves
  let asked = 0; // number of the last choice: answers to earlier ones come too late
  let done = 0; // the last that is on the screen
  const CERTAIN = 4; // standard deviations: among some thousand cells, noise alone does not differ by so much
  const MOST_PLACES = 8;

  /** The night that B is compared with: so many days before it, or the last before that. */
  function relative(b, name) {
    const wanted = dayOf(b.date) - RELATIVE[name][0];
    return mapped.findLast((night) => dayOf(night.date) <= wanted) ?? null;
  }
  /** Chooses nights: b is shown, a is what it is compared with. */
  function choose({ a, b = chosen.b, how = a ? "fixed" : mode }) {
    mode = how;
    chosen.b = b;
    if (a) chosen.a = a;
    else if (mode !== "fixed") chosen.a = relative(b, mode);
    const fragment = `#${chosen.a ? `${chosen.a.date}..` : ""}${chosen.b.date}`;
    if (location.hash !== fragment) history.replaceState(null, "", fragment);
    $("night").value = b.date;
    $("against").value = mode === "fixed" ? chosen.a?.date ?? "" : mode;
    $("earlier").disabled = b === nights[0];
    $("later").disabled = b === nights.at(-1);
    for (const row of rows) row.classList.remove("chosen");
    for (const night of [chosen.a, b]) if (night) rows[placeOf.get(night.date)].classList.add("chosen");
    markTime();
    scrollTime();
    return showMaps();
  }
  /** What the address says: `#2026-11-13..2026-11-20`, or the night alone. */
  function chooseByAddress() {
    const dates = decodeURIComponent(location.hash.slice(1)).split("..");
    const found = dates.map((date) => nights[placeOf.get(date)]);
    const b = found.at(-1) ?? mapped.at(-1) ?? nights.at(-1);
    const a = found.length === 2 && found[1] && found[0]?.map ? found[0] : null;
    return choose({ a, b, how: a ? (Object.keys(RELATIVE).find((name) => mode === name && relative(b, name) === a) ?? "fixed") : "before" });
  }

  // ---------------------------------------------------------------- maps and their words

  const links = (night) => [["index.html", "its own page"], ["manifest.json", "manifest"], ...(night.map ? [["cells.parquet", "cells"], ["density.npy", "density"]] : [])]
    .map(([name, text]) => h("a", { href: `${night.folder}/${name}` }, text));
  /** A date without its year, where the page has but one. */
  const brief = (date) => (nights[0].date.slice(0, 4) === nights.at(-1).date.slice(0, 4) ? spelt(dayOf(date), { day: "numeric", month: "short" }) : shortDate(date));
  const spaced = (items) => items.flatMap((item, i) => (i ? [" · ", item] : [item]));
  function refuse(panel, ...words) {
    panel.blocks = null;
    panel.absent.hidden = words.length === 0;
    panel.absent.replaceChildren(...words);
    panel.frame.classList.toggle("empty", words.length > 0);
    panel.legend.hidden = words.length > 0;
    panel.tip.hidden = true;
  }
  function accept(panel) {
    panel.absent.hidden = true;
    panel.legend.hidden = false;
    panel.frame.classList.remove("empty");
  }
  const withoutMap = (night) => [`The release of ${shortDate(night.date)} is a ${night.job}, without a map: see `, links(night)[0], "."];

  async function showMaps() {
    const mine = ++asked;
    const { a, b } = chosen;
    if (chosen.shown === "a" && !a) chosen.shown = "b";
    const night = chosen[chosen.shown];
    for (const which of ["a", "b"]) {
      const button = $(`show-${which}`);
      button.disabled = !chosen[which];
      button.setAttribute("aria-pressed", String(chosen.shown === which));
      button.setAttribute("aria-label", chosen[which] ? `${which.toUpperCase()}, ${shortDate(chosen[which].date)}` : which.toUpperCase());
    }
    $("night-title").replaceChildren(h("b", { class: `pin ${chosen.shown}`, "aria-hidden": "true" }, chosen.shown.toUpperCase()), ` ${longDate(night.date)}`);
    $("night-facts").replaceChildren(...spaced([`${counted(night)}, ${charged(night)}`, ...links(night)]));
    $("change-title").replaceChildren(...(a ? ["Change from ", h("b", { class: "pin a", "aria-hidden": "true" }, "A"), ` ${brief(a.date)} to `, h("b", { class: "pin b", "aria-hidden": "true" }, "B"), ` ${brief(b.date)}`] : ["Change"]));
    const tried = await Promise.all([a, b].map((one) => (one?.map ? load(one).catch((error) => error) : null)));
    if (mine !== asked) return;
    const [mapA, mapB] = tried;
    const own = chosen.shown === "a" ? mapA : mapB;
    if (!night.map) refuse(panels.night, ...withoutMap(night));
    else if (own instanceof Error) refuse(panels.night, own.message);
    else {
      accept(panels.night);
      paintNight(own);
    }
    showChange(a, b, mapA, mapB);
    measure();
    done = mine;
  }

  function showChange(a, b, mapA, mapB) {
    const panel = panels.change;
    const broken = [mapA, mapB].find((map) => map instanceof Error);
    $("change-facts").replaceChildren();
    $("most").replaceChildren();
    $("most-words").textContent = "";
    $("most").closest("section").hidden = true;
    if (!a) return refuse(panel, mapped.length > 1 && b.map ? "No earlier night to compare with. Choose one as A." : "There is nothing to compare with yet.");
    const mapless = [b, a].find((night) => !night.map);
    if (mapless) return refuse(panel, ...withoutMap(mapless));
    if (broken) return refuse(panel, broken.message);
    if (a === b) return refuse(panel, "A and B are the same night. Choose another for one of them.");
    if (!sameRegion(mapA, mapB)) return refuse(panel, "These two nights are maps of different regions, so they cannot be compared.");
    accept(panel);
    const blocks = compare(mapA, mapB);
    paintChange(blocks, chosen.unit);
    const beyond = blocks.lost.filter((lost) => !lost).length;
    $("change-facts").textContent = `${whole(beyond)} of ${plural(blocks.n, "cell")} differ by more than the noise; noise alone lets about 1 in 20 at most.`;
    showMost(blocks);
  }

  /**
   * The places that changed most for certain, the surest first: cells that differ by more than CERTAIN, together with
   * those beside them that went the same way. `i` is the cell that changed most for its size, (u, v) its middle.
   */
  function mostChanged(blocks) {
    const side = 2 ** blocks.bits;
    const order = orderOf(blocks.bits);
    const way = blocks.difference.map((value, i) => (Math.abs(value) > CERTAIN * blocks.deviation[i] ? Math.sign(value) : 0));
    const rows = new Uint32Array(side * side); // the block of each pixel, row by row
    order.forEach((at, z) => { rows[at] = blocks.of[z]; });
    const done = new Uint8Array(blocks.n);
    const density = (i) => Math.abs(blocks.difference[i]) * 4 ** blocks.level[i];
    const places = [];
    for (let first = 0; first < rows.length; first++) {
      if (!way[rows[first]] || done[rows[first]]) continue;
      const cells = new Set();
      const seen = new Set([first]);
      for (const at of seen) { // a set is visited in the order of adding, what is added meanwhile too
        const i = rows[at];
        cells.add(i);
        done[i] = 1;
        const x = at % side;
        for (const next of [x > 0 && at - 1, x < side - 1 && at + 1, at - side, at + side]) {
          if (next !== false && next >= 0 && next < rows.length && way[rows[next]] === way[i]) seen.add(next);
        }
      }
      const sum = (value) => [...cells].reduce((total, i) => total + value(i), 0);
      const i = [...cells].reduce((most, one) => (density(one) > density(most) ? one : most));
      const wide = 2 ** -blocks.level[i];
      places.push({ i, cells: cells.size, difference: sum((one) => blocks.difference[one]), deviation: Math.sqrt(sum((one) => blocks.deviation[one] ** 2)), u: (blocks.x[i] + 0.5) * wide, v: (blocks.y[i] + 0.5) * wide });
    }
    const sure = (one) => Math.abs(one.difference) - BEYOND * one.deviation;
    return places.sort((one, two) => sure(two) - sure(one)).slice(0, MOST_PLACES);
  }
  function showMost(blocks) {
    const places = mostChanged(blocks);
    const { region } = blocks;
    $("most").closest("section").hidden = false;
    $("most-words").textContent = places.length ? `Beyond ${CERTAIN} standard deviations of the noise; cells side by side count together.` : `No cell changed by more than ${CERTAIN} standard deviations of the noise: nothing here is sure to have changed.`;
    $("most").replaceChildren(...places.map(({ i, cells, difference, deviation, u, v }) => {
      const mark = h("i", { class: "swatch", "aria-hidden": "true" });
      mark.style.background = rgb(CHANGE[Math.round(127.5 * (1 + shadeOf(blocks, i, chosen.unit)))]);
      const where = place(region.west + u * (region.east - region.west), region.north - v * (region.north - region.south), 3);
      const button = h("button", { type: "button", title: "Show on the maps" }, mark, h("span", null, signed(difference)), h("span", { class: "number" }, `± ${points(BEYOND * deviation)}`),
        h("span", { class: "number where" }, `${where}${cells > 1 ? `, ${whole(cells)} cells` : ""}`));
      button.addEventListener("click", () => {
        look(clamp(0.12 * 2 ** blocks.level[i], 2, 8), u, v);
        point(panels.change, [u, v], true);
        panels.change.frame.scrollIntoView({ block: "nearest" });
        speak();
      });
      return h("li", null, button);
    }));
  }

  // ---------------------------------------------------------------- controls

  const option = (value, text) => h("option", { value }, text);
  const newest = [...nights].reverse();
  $("night").append(...newest.map((night) => option(night.date, `${shortDate(night.date)}${night.map ? "" : `, ${night.job}`}`)));
  $("against").append(...Object.entries(RELATIVE).map(([name, [, text]]) => option(name, text)), ...newest.filter((night) => night.map).map((night) => option(night.date, shortDate(night.date))));
  $("night").addEventListener("change", () => choose({ b: nights[placeOf.get($("night").value)] }));
  $("against").addEventListener("change", () => {
    const { value } = $("against");
    return value in RELATIVE ? choose({ how: value }) : choose({ a: nights[placeOf.get(value)] });
  });
  for (const [id, by] of [["earlier", -1], ["later", 1]]) $(id).addEventListener("click", () => choose({ b: nights[clamp(placeOf.get(chosen.b.date) + by, 0, nights.length - 1)] }));
  for (const which of ["a", "b"]) $(`show-${which}`).addEventListener("click", () => {
    chosen.shown = which;
    return showMaps();
  });
  for (const unit of ["points", "ratio"]) $(`unit-${unit}`).addEventListener("click", () => {
    chosen.unit = unit;
    for (const one of ["points", "ratio"]) $(`unit-${one}`).setAttribute("aria-pressed", String(one === unit));
    return showMaps();
  });

  // ---------------------------------------------------------------- words about all of it

  function showHead() {
    const missing = days - nights.length;
    const total = nights.reduce((sum, night) => sum + night.epsilon, 0);
    const window = spending.at(-1);
    const now = window?.spent.at(-1)?.[1];
    showHeader(`${dataset}: ${plural(nights.length, "night")}`, [
      ["First", shortDate(nights[0].date)], ["Last", shortDate(nights.at(-1).date)], missing && ["Dates without", whole(missing)], ["Spent in all", `ε ${significant(total, 4)}`],
      isNumber(now) && [window.days === 1 ? "Last day" : `Last ${window.days} days`, `ε ${significant(now, 4)} of ${significant(window.epsilon, 4)}`],
    ].filter(Boolean));
    document.querySelector(".skip").textContent = "Skip to how to read it";
    document.querySelector(".eyebrow").lastChild.textContent = " nightly releases";
    $("report").setAttribute("aria-label", "How to read this page");
    const worst = nights.reduce((most, night) => (night.epsilon > most.epsilon ? night : most));
    $("report").append(
      h("div", { class: "columns" },
        section("How to read the difference",
          paragraph("Colours show what a place gained or lost of all users of its night, so a busier night alone changes nothing. Where one of the two maps has larger cells, the other's are added up to them: a finer grid is no change."),
          paragraph(`A cell counts as within the noise where it differs by less than ${BEYOND} standard deviations of the noise of both releases. Noise alone makes about 1 cell in 20 at most seem to differ by more, so a single one means little; the list names what differs by more than ${CERTAIN}.`),
          paragraph("That is the noise of privacy. Other people are out every night, and small places change by chance as well.")),
        h("div", { class: "stack" },
          section("What a night promises", paragraph(promised("release", worst.epsilon, worst.delta ? `, but for a chance of ${tiny(worst.delta)}` : "")),
            nights.length > 1 && paragraph("Somebody who is there every night loses more with every release: what is spent adds up.")),
          siblings())));
  }

  showHead();
  startTime(choose);
  look(1, 0.5, 0.5);
  chosen.b = nights.at(-1);
  drawTime();
  chooseByAddress();
  addEventListener("hashchange", chooseByAddress);
  new ResizeObserver(() => { drawTime(); scrollTime(); }).observe($("scroll"));
  new ResizeObserver(measure).observe(document.querySelector(".pair"));
  window.sfumato = {
    nights, choose, look, zoom, panels, compare, load, mostChanged,
    get chosen() { return { a: chosen.a?.date ?? null, b: chosen.b.date, mode }; },
    get settled() { return done === asked; },
    get view() { return { ...view }; },
    project: (lon, lat, name = "change") => {
      const { region } = panels[name].blocks;
      return toScreen(panels[name], (lon - region.west) / (region.east - region.west), (region.north - lat) / (region.north - region.south));
    },
  };
