// The two maps: the view they share, painting, the value under the pointer.

  const view = { k: 1, x: 0.5, y: 0.5 }; // magnification, and the middle in shares of the region
  const MOST_ZOOM = 24;
  const cross = { at: null, panel: null, keys: false }; // where the pointer or the keyboard's cross is, in shares of the region
  const points = (share, digits = 2) => significant(100 * share, digits);
  const signed = (share) => `${share > 0 ? "+" : ""}${points(share)} ${Math.abs(Number((100 * share).toPrecision(2))) === 1 ? "point" : "points"}`;
  const shareWords = (share) => `${points(share, 3)}% of the users`;

  const shown = () => Object.values(panels).filter((panel) => panel.blocks && panel.size);
  const regionOf = () => Object.values(panels).find((panel) => panel.blocks)?.blocks.region;
  /** The region's sides in metres, at its middle latitude. */
  function groundOf(region) {
    const cosine = Math.max(Math.cos((((region.north + region.south) / 2) * Math.PI) / 180), 0.01);
    return [(region.east - region.west) * METRES_PER_DEGREE * cosine, (region.north - region.south) * METRES_PER_DEGREE];
  }
  function measure() {
    const region = regionOf();
    if (!region) return;
    const [wide, tall] = groundOf(region);
    for (const panel of Object.values(panels)) {
      panel.frame.style.aspectRatio = `${clamp(wide / tall, 0.7, 2.4)}`;
      const { width: w, height: hgt } = panel.frame.getBoundingClientRect();
      const dpr = Math.min(window.devicePixelRatio || 1, 3);
      const unit = Math.min(w / wide, hgt / tall);
      if (!(w > 0)) continue;
      [panel.canvas.width, panel.canvas.height] = [Math.round(w * dpr), Math.round(hgt * dpr)];
      panel.size = { w, h: hgt, dpr, fitW: wide * unit, fitH: tall * unit };
    }
    draw();
  }
  const toScreen = (panel, u, v) => [panel.size.w / 2 + (u - view.x) * panel.size.fitW * view.k, panel.size.h / 2 + (v - view.y) * panel.size.fitH * view.k];
  const toMap = (panel, px, py) => [view.x + (px - panel.size.w / 2) / (panel.size.fitW * view.k), view.y + (py - panel.size.h / 2) / (panel.size.fitH * view.k)];

  let waiting = 0;
  const draw = () => { waiting ||= requestAnimationFrame(() => { waiting = 0; shown().forEach(drawPanel); }); };
  function drawPanel(panel) {
    const { ctx, canvas, size, sheet, blocks } = panel;
    const side = 2 ** blocks.bits;
    const [left, top] = toScreen(panel, 0, 0).map((one) => one * size.dpr);
    const [px, py] = [(size.fitW * view.k * size.dpr) / side, (size.fitH * view.k * size.dpr) / side];
    ctx.fillStyle = "#08070b";
    ctx.fillRect(0, 0, canvas.width, canvas.height);
    ctx.imageSmoothingEnabled = px < 1;
    const [sx, sy] = [clamp(Math.floor(-left / px), 0, side - 1), clamp(Math.floor(-top / py), 0, side - 1)];
    const [ex, ey] = [clamp(Math.ceil((canvas.width - left) / px), 1, side), clamp(Math.ceil((canvas.height - top) / py), 1, side)];
    ctx.drawImage(sheet, sx, sy, ex - sx, ey - sy, left + sx * px, top + sy * py, (ex - sx) * px, (ey - sy) * py);
    if (cross.at) {
      const spot = blockAt(panels[cross.panel].blocks ?? blocks, ...cross.at);
      if (spot) {
        const wide = side / 2 ** spot.level;
        for (const [line, colour] of [[3.5, "rgba(0,0,0,.65)"], [1.6, "#fff"]]) {
          ctx.lineWidth = line * size.dpr;
          ctx.strokeStyle = colour;
          ctx.strokeRect(left + spot.x * wide * px, top + spot.y * wide * py, wide * px, wide * py);
        }
      }
    }
    showScale(panel);
    showTip(panel);
  }
  function showScale({ size, scale, blocks }) {
    const perPixel = groundOf(blocks.region)[0] / (size.fitW * view.k);
    const length = niceStep(45 * perPixel);
    scale.querySelector("span").textContent = metres(length);
    scale.querySelector("i").style.width = `${length / perPixel}px`;
  }
  /** The block under a place in shares of the region: {i, level, x, y}, or null. */
  function blockAt(blocks, u, v) {
    if (!(u >= 0 && u <= 1 && v >= 0 && v <= 1)) return null;
    const side = 2 ** blocks.bits;
    const i = blocks.of[ravel(Math.min(Math.floor(u * side), side - 1), Math.min(Math.floor(v * side), side - 1), blocks.bits)];
    return { i, level: blocks.level[i], x: blocks.x[i], y: blocks.y[i] };
  }

  function look(k, x, y) {
    view.k = clamp(k, 1, MOST_ZOOM);
    const reach = 0.5 / view.k;
    view.x = clamp(x, reach, 1 - reach);
    view.y = clamp(y, reach, 1 - reach);
    for (const { frame } of Object.values(panels)) frame.classList.toggle("zoomed", view.k > 1);
    $("zoom-out").disabled = $("zoom-whole").disabled = view.k === 1;
    $("zoom-in").disabled = view.k === MOST_ZOOM;
    $("zoom-whole").textContent = view.k === 1 ? "whole" : `${significant(view.k, 2)}×`;
    $("zoom-whole").setAttribute("aria-label", view.k === 1 ? "Whole maps" : `Magnified ${significant(view.k, 2)} times; show whole maps`);
    draw();
  }
  /** Magnifies by a factor; the place (u, v) of the region stays where it is. */
  function zoom(factor, u = view.x, v = view.y) {
    const next = clamp(view.k * factor, 1, MOST_ZOOM);
    const held = view.k / next;
    look(next, u + (view.x - u) * held, v + (view.y - v) * held);
  }

  // ---------------------------------------------------------------- the value under the pointer

  /** What a panel says of a block: a value, its margin, rows of facts. */
  function tipWords(panel, { i, level, x, y }, u, v) {
    const { blocks } = panel;
    const [west, north] = [blocks.region.west, blocks.region.north];
    const [wide, tall] = groundOf(blocks.region).map((length) => length / 2 ** level);
    const margin = BEYOND * blocks.deviation[i];
    const where = [
      ["Cell", `${metres(wide)} × ${metres(tall)}`],
      ["Place", place(west + u * (blocks.region.east - west), north - v * (north - blocks.region.south), 4)],
    ];
    const about = (share, night) => `${points(share, 3)}%${isNumber(night.users) ? `, about ${whole(share * night.users)} users` : ""}`;
    const { a, b } = chosen;
    const of = chosen[chosen.shown];
    if (panel.name === "night") {
      const own = margin / Math.SQRT2; // the map was compared with itself: its noise is there twice
      return { value: shareWords(blocks.after[i]), margin: `± ${points(own)} points at ${BEYOND} standard deviations`, rows: [...(isNumber(of.users) ? [["Users", `about ${whole(blocks.after[i] * of.users)}`]] : []), ...where] };
    }
    const ratio = blocks.before[i] > 0 ? `${significant(blocks.after[i] / blocks.before[i])}×` : "from none";
    return {
      value: blocks.lost[i] ? "within the noise" : signed(blocks.difference[i]),
      margin: `${blocks.lost[i] ? `${signed(blocks.difference[i])} ` : ""}± ${points(margin)} points, noise of both`,
      rows: [["A", about(blocks.before[i], a)], ["B", about(blocks.after[i], b)], ["B over A", ratio], ...where],
    };
  }
  function showTip(panel) {
    const { tip, size } = panel;
    const spot = cross.at && cross.panel === panel.name && blockAt(panel.blocks, ...cross.at);
    tip.hidden = !spot;
    if (!spot) return;
    fillTip(tip, tipWords(panel, spot, ...cross.at));
    const [px, py] = toScreen(panel, ...cross.at);
    tip.style.transform = `translate(${tipAt(px, tip.offsetWidth, size.w)}px,${tipAt(py, tip.offsetHeight, size.h)}px)`;
  }
  let speaking = 0;
  function speak() {
    clearTimeout(speaking);
    speaking = setTimeout(() => {
      const panel = panels[cross.panel];
      const spot = cross.at && panel?.blocks && blockAt(panel.blocks, ...cross.at);
      const text = spot && tipWords(panel, spot, ...cross.at);
      $("spoken").textContent = text ? aloud(text) : "";
    }, 350);
  }

  // ---------------------------------------------------------------- pointer and keys

  function point(panel, at, keys = false) {
    Object.assign(cross, { at, panel: panel && panel.name, keys });
    draw();
  }
  for (const panel of Object.values(panels)) {
    const { canvas } = panel;
    const here = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (!panel.blocks || event.button) return;
      drag = { from: here(event), x: view.x, y: view.y };
      if (view.k > 1) canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!panel.blocks) return;
      const [px, py] = here(event);
      if (drag && view.k > 1) look(view.k, drag.x - (px - drag.from[0]) / (panel.size.fitW * view.k), drag.y - (py - drag.from[1]) / (panel.size.fitH * view.k));
      if (event.pointerType !== "touch") point(panel, toMap(panel, px, py));
    });
    canvas.addEventListener("pointerup", (event) => {
      if (drag && event.pointerType === "touch" && Math.hypot(...here(event).map((one, i) => one - drag.from[i])) < 8) point(panel, toMap(panel, ...here(event)));
      drag = null;
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch" && !cross.keys) point(null, null); });
    canvas.addEventListener("dblclick", (event) => { if (panel.blocks) zoom(2, ...toMap(panel, ...here(event))); });
    canvas.addEventListener("wheel", (event) => {
      if ((!event.ctrlKey && !event.metaKey) || !panel.blocks) return; // a pinch, or meant; else the page scrolls
      event.preventDefault();
      zoom(2 ** (-event.deltaY / 150), ...toMap(panel, ...here(event)));
    }, { passive: false });
    canvas.addEventListener("blur", () => { if (cross.keys) point(null, null); });
    canvas.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !panel.blocks) return;
      const [u, v] = cross.at ?? [view.x, view.y];
      const step = 1 / (40 * view.k);
      const [right, down] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key] || [0, 0];
      if (right || down) {
        const at = [clamp(u + right * step, 0, 1), clamp(v + down * step, 0, 1)];
        const reach = 0.45 / view.k; // the view follows the cross
        look(view.k, clamp(view.x, at[0] - reach, at[0] + reach), clamp(view.y, at[1] - reach, at[1] + reach));
        point(panel, at, true);
      } else if (event.key === "+" || event.key === "=") zoom(1.5, u, v);
      else if (event.key === "-") zoom(1 / 1.5, u, v);
      else if (event.key === "0") look(1, 0.5, 0.5);
      else if (event.key === "Escape") point(null, null);
      else return;
      event.preventDefault();
      speak();
    });
  }
  $("zoom-in").addEventListener("click", () => zoom(2));
  $("zoom-out").addEventListener("click", () => zoom(0.5));
  $("zoom-whole").addEventListener("click", () => look(1, 0.5, 0.5));
