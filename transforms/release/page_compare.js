// A comparison: the chosen setting, pictures in step, the sortable table, the report. page_compare_chart.js draws the curves.

  const { rows, metrics, shared, own } = data;
  const varied = [...shared, ...own];
  const methods = [...new Set([...rows].sort((a, b) => b.private - a.private).map((row) => row.method))];
  const chosen = { ...data.start };
  const album = [...document.querySelectorAll("#album img")];
  const isPrivate = (method) => rows.some((row) => row.method === method && row.private);

  /** All values of an option with their texts, numbers ascending before words. */
  const valuesOf = (name) => {
    const texts = new Map(rows.filter((row) => name in row.options).map((row) => [row.options[name], row.texts[name]]));
    return [...texts].sort(([a], [b]) => (typeof a === "string") - (typeof b === "string") || (a > b) - (a < b)).map(([value, text]) => ({ value, text }));
  };
  const choices = Object.fromEntries(varied.map((name) => [name, valuesOf(name)]));
  /** Whether a row has the chosen value of every option that it has, `free` left aside. */
  const fits = (row, free = null) => varied.every((name) => name === free || !(name in row.options) || row.options[name] === chosen[name]);
  const rowOf = (method) => rows.find((row) => row.method === method && fits(row));
  const words = () => varied.map((name) => `${name} ${choices[name].find((one) => one.value === chosen[name])?.text ?? ""}`).join(", ");

  const SHAPES = ["M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-3.6-3.6h7.2v7.2h-7.2z", "M0-5 4.6 3.6H-4.6z", "M0-5.2 5.2 0 0 5.2-5.2 0z", "M0 5 4.6-3.6H-4.6z", "M-1.5-5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z"];
  const HUES = 8; // colours in the style sheet
  /** The number of a line's colour and shape: that of `emd` for `emd (level by truth)`, -1 for the yardstick. */
  const hueOf = (method) => methods.findIndex((one) => isPrivate(one) && (one === method || method.startsWith(`${one} (`)));
  /** A line's looks: a colour, and dashes for what is not private. */
  const looks = (method) => `one${isPrivate(method) ? "" : " outside"}${hueOf(method) < 0 ? "" : ` hue${hueOf(method) % HUES}`}`;
  const point = (method, x, y) => svg("path", { class: "point", d: SHAPES[Math.max(hueOf(method), 0) % SHAPES.length], transform: `translate(${x.toFixed(2)} ${y.toFixed(2)})` });
  const swatchOf = (method) => svg("svg", { class: `line ${looks(method)}`, width: 30, height: 14, viewBox: "0 0 30 14", "aria-hidden": "true" }, svg("path", { class: "curve", d: "M1 7h28" }), hueOf(method) >= 0 && point(method, 15, 7));

  // ---------------------------------------------------------------- choices

  const selects = Object.fromEntries(varied.map((name) => {
    const select = h("select", { "data-option": name }, choices[name].map((one, i) => h("option", { value: i }, one.text)));
    select.addEventListener("change", () => choose({ [name]: choices[name][Number(select.value)].value }));
    $("choices").append(h("label", null, `${name} `, select));
    return [name, select];
  }));
  /** Chooses values of options, and shows their pictures and figures. */
  function choose(changes) {
    Object.assign(chosen, changes);
    for (const name of varied) selects[name].value = String(choices[name].findIndex((one) => one.value === chosen[name]));
    showShots();
    markTable();
    drawChart();
    $("spoken").textContent = varied.length ? `Shown: ${words()}` : "";
  }

  // ---------------------------------------------------------------- pictures

  const TRUTH = "truth";
  const size = { width: album[0].getAttribute("width"), height: album[0].getAttribute("height") };
  const shots = Object.fromEntries([TRUTH, ...methods].map((method) => {
    const picture = h("img", { ...size, alt: "", draggable: "false" });
    const absent = h("p", { class: "absent" });
    const cross = h("i", { class: "cross", hidden: "" });
    const frame = h("div", { class: "frame" }, picture, absent, cross);
    const list = h("dl");
    const name = h("h3", null, method !== TRUTH && swatchOf(method), h("span", null, method), method === TRUTH ? h("small", null, "exact") : !isPrivate(method) && h("small", null, "not private"));
    $("shots").append(h("figure", { class: "shot", "data-method": method }, frame, h("figcaption", null, name, list)));
    return [method, { picture, absent, cross, frame, list }];
  }));
  shots[TRUTH].picture.src = album[0].src;
  shots[TRUTH].picture.alt = "Truth: the exact density, bright where many users are";
  shots[TRUTH].absent.hidden = true;

  /** The best value of a metric among the private methods at the chosen setting, where several compete. */
  function bestOf(metric, here) {
    const values = here.filter((row) => row.private).map((row) => row.metrics[metric.name][0]).filter(isNumber);
    return values.length < 2 ? null : metric.better === "lower" ? Math.min(...values) : Math.max(...values);
  }
  function showShots() {
    const here = methods.map(rowOf).filter(Boolean);
    for (const method of methods) {
      const { picture, absent, list } = shots[method];
      const row = rowOf(method);
      const shown = row !== undefined && isNumber(row.picture);
      picture.hidden = !shown;
      absent.hidden = shown;
      if (shown) {
        picture.src = album[row.picture].src;
        picture.alt = `${method}: the estimated density, bright where many users are`;
      } else {
        absent.textContent = row === undefined ? "Not run at this setting" : data.left_out ? "Left out of this page" : "No picture: nothing was estimated";
      }
      list.replaceChildren(...(row === undefined ? [] : metrics.map((metric) => {
        const [value, , text] = row.metrics[metric.name];
        const [mean, error] = text.split(" \u00b1 ");
        const best = row.private && value !== null && value === bestOf(metric, here);
        return h("div", null, h("dt", null, metric.name), h("dd", best ? { class: "best", title: "The best private method here" } : null, mean, error !== undefined && h("small", null, ` \u00b1 ${error}`)));
      })));
    }
  }

  const MOST_ZOOM = 16;
  const view = { k: 1, x: 0.5, y: 0.5 }; // magnification, and the middle in shares of the picture
  const frames = Object.values(shots).map((shot) => shot.frame);
  function look(k, x, y) {
    view.k = clamp(k, 1, MOST_ZOOM);
    const reach = 0.5 / view.k;
    view.x = clamp(x, reach, 1 - reach);
    view.y = clamp(y, reach, 1 - reach);
    const [left, top] = [view.x, view.y].map((middle) => (100 * (0.5 - view.k * middle)).toFixed(3));
    for (const { picture } of Object.values(shots)) picture.style.transform = `translate(${left}%,${top}%) scale(${view.k})`;
    $("shots").classList.toggle("zoomed", view.k > 1);
    $("zoom-out").disabled = $("zoom-whole").disabled = view.k === 1;
    $("zoom-in").disabled = view.k === MOST_ZOOM;
    $("zoom-whole").textContent = view.k === 1 ? "whole" : `${significant(view.k, 2)}\u00d7`;
    $("zoom-whole").setAttribute("aria-label", view.k === 1 ? "Whole pictures" : `Magnified ${significant(view.k, 2)} times; show whole pictures`);
  }
  /** Magnifies by a factor; the place under the pointer, in shares of the frame, stays where it is. */
  const zoom = (factor, u = 0.5, v = 0.5) => {
    const next = clamp(view.k * factor, 1, MOST_ZOOM);
    const shift = 1 / view.k - 1 / next;
    look(next, view.x + (u - 0.5) * shift, view.y + (v - 0.5) * shift);
  };
  const placeIn = (frame, event) => {
    const box = frame.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  };
  function cross(u, v) {
    for (const { cross: mark } of Object.values(shots)) {
      mark.hidden = u === null;
      if (u !== null) [mark.style.left, mark.style.top] = [`${100 * u}%`, `${100 * v}%`];
    }
  }
  let drag = null;
  for (const frame of frames) {
    frame.addEventListener("pointerdown", (event) => {
      if (view.k === 1 || event.button !== 0) return;
      drag = { from: placeIn(frame, event), x: view.x, y: view.y };
      frame.setPointerCapture(event.pointerId);
      event.preventDefault();
      $("shots").focus({ preventScroll: true });
    });
    frame.addEventListener("pointermove", (event) => {
      const [u, v] = placeIn(frame, event);
      if (drag) look(view.k, drag.x - (u - drag.from[0]) / view.k, drag.y - (v - drag.from[1]) / view.k);
      cross(...(drag || event.pointerType === "touch" ? [null, null] : [u, v]));
    });
    for (const end of ["pointerup", "pointercancel"]) frame.addEventListener(end, () => { drag = null; });
    frame.addEventListener("pointerleave", () => cross(null, null));
    frame.addEventListener("dblclick", (event) => zoom(2, ...placeIn(frame, event)));
    frame.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return; // a pinch, or meant; else the page scrolls
      event.preventDefault();
      zoom(2 ** (-event.deltaY / 150), ...placeIn(frame, event));
    }, { passive: false });
  }
  $("zoom-in").addEventListener("click", () => zoom(2));
  $("zoom-out").addEventListener("click", () => zoom(0.5));
  $("zoom-whole").addEventListener("click", () => look(1, 0.5, 0.5));
  $("shots").addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = 0.15 / view.k;
    const [right, down] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key] || [0, 0];
    if (right || down) {
      if (view.k === 1) return;
      look(view.k, view.x + right * step, view.y + down * step);
    } else if (event.key === "+" || event.key === "=") zoom(2);
    else if (event.key === "-") zoom(0.5);
    else if (event.key === "0" || event.key === "Escape") look(1, 0.5, 0.5);
    else return;
    event.preventDefault();
  });

  // ---------------------------------------------------------------- the table

  const bodyRows = [...$("table").tBodies[0].rows];
  const heads = [...$("table").tHead.rows[0].cells];
  const keyOf = (row, column) => {
    const cell = row.cells[column];
    if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
    return ["", "-"].includes(cell.textContent) ? null : cell.textContent;
  };
  /** Sorts by a column; a second time, the other way. Rows without a value stay last. */
  function sortBy(column) {
    const down = heads[column].getAttribute("aria-sort") === "ascending";
    heads.forEach((head, i) => (i === column ? head.setAttribute("aria-sort", down ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    const keys = new Map(bodyRows.map((row) => [row, keyOf(row, column)]));
    const order = [...bodyRows].sort((one, two) => {
      const [a, b] = [keys.get(one), keys.get(two)];
      if (a === null || b === null) return (a === null) - (b === null);
      const rank = typeof a === typeof b ? (a > b) - (a < b) : typeof a === "number" ? -1 : 1;
      return down ? -rank : rank;
    });
    $("table").tBodies[0].append(...order);
  }
  heads.forEach((head, column) => {
    const button = h("button", { type: "button" }, head.textContent);
    button.addEventListener("click", () => sortBy(column));
    head.replaceChildren(button);
  });
  for (const line of bodyRows) {
    const row = rows[Number(line.dataset.row)];
    const name = line.querySelector("th");
    const button = h("button", { type: "button", title: "Show this setting's pictures" }, row.method);
    button.addEventListener("click", () => {
      choose(row.options);
      $("pictures-title").scrollIntoView({ block: "start" });
    });
    name.replaceChildren(button);
  }
  function markTable() {
    for (const line of bodyRows) line.classList.toggle("chosen", varied.length > 0 && fits(rows[Number(line.dataset.row)]));
  }

  // ---------------------------------------------------------------- the report

  function showComparison() {
    const written = (values) => (values.length > 4 ? `${values[0].text} to ${values[values.length - 1].text}` : values.map((one) => one.text).join(", "));
    const compared = methods.filter(isPrivate).length;
    const beside = methods.length - compared;
    showHeader(`${plural(compared, "method")} on the same cohorts${beside ? `, beside ${plural(beside, "that is", "that are")} not private` : ""}`, [
      ["Settings", whole(rows.length)], ...shared.slice(0, 3).map((name) => [name, written(choices[name])]),
    ]);
    document.querySelector(".skip").textContent = "Skip to how to read it";
    $("report").setAttribute("aria-label", "How to read this comparison");
    $("left-out").hidden = !data.left_out;
    $("report").append(...[
      data.problems.length ? h("section", { class: "warnings" }, h("h2", null, plural(data.problems.length, "warning")), list(data.problems)) : null,
      h("div", { class: "columns" },
        section("How to read it",
          paragraph("Every method met the same cohorts: run for run, the same users were drawn and the same of them vanished. A figure is the mean over the runs, with its standard error; a picture is that of one run."),
          paragraph("What is marked \u201cnot private\u201d has looked at the exact data. It is there to compare with, and cannot be published. best_level is the uniform grid of the best level, without any noise: the least squared error of all uniform grids, and no bound for other maps or figures.")),
        section("What the figures mean", h("p", { class: "quiet" }, "e is the estimated density, t the exact one."), facts([
          ...metrics.map((metric) => [metric.name, `${metric.help.replace(/\.$/, "")}; ${metric.better === "lower" ? "lower" : "higher"} is better`]),
          ["entries, bits", "what one client sends, in all sub-queries together"],
        ]))),
      siblings(),
      section(null, fold("Parameters", get("parameters")), fold("Versions", get("versions")),
        fold("This comparison", { id: get("release_id", "unknown"), created: get("created", "unknown"), region: Object.values(get("region", {})).join(", ") })),
    ].filter(Boolean));
  }
