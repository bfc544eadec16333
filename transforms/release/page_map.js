// The map: view, painting, pointer and keys. Each page with a map says what its layers look like (LOOK, spotAt,
// tipWords, legendTicks) and what its panel shows.

  /** Index of the deepest node that covers (u, v), both in 0..1 from the north-west, or -1. */
  function nodeAt(layer, u, v) {
    if (!(u >= 0 && u <= 1 && v >= 0 && v <= 1)) return -1;
    for (let level = layer.maxLevel; level >= 0; level--) {
      const side = 2 ** level;
      const x = Math.min(Math.floor(u * side), side - 1);
      const y = Math.min(Math.floor(v * side), side - 1);
      const i = layer.places.get(keyOf(level, x, y));
      if (i !== undefined) return i;
    }
    return -1;
  }

  // ---------------------------------------------------------------- view

  const canvas = $("canvas");
  const ctx = canvas.getContext("2d", { alpha: false });
  const state = { layer: layers.length - 1, grid: false, fade: true, hover: null, keyboard: false };
  const view = { scale: 1, cx: 0.5, cy: 0.5 }; // what is drawn: 1 shows all; the centre in 0..1 from the north-west
  let goal = { ...view, anchor: null }; // where an animation is heading
  let size = { w: 1, h: 1, dpr: 1, fitW: 1, fitH: 1, midX: 0, midY: 0 };
  let frame = 0;
  let dissolve = null; // the picture before the last change of layer, and when it began to fade

  const maxScale = () => Math.max(16, (2 ** depth * 96) / size.fitW);
  function bounded({ scale, cx, cy }) {
    const s = clamp(isNumber(scale) ? scale : 1, 1, maxScale());
    const slack = Math.min(0.5, 0.5 * (1 - 1 / s) + 0.25);
    return { scale: s, cx: clamp(cx, 0.5 - slack, 0.5 + slack), cy: clamp(cy, 0.5 - slack, 0.5 + slack) };
  }
  function moveTo(target, animate = true, anchor = null) {
    goal = { ...bounded(target), anchor };
    if (!animate || still.matches) Object.assign(view, { scale: goal.scale, cx: goal.cx, cy: goal.cy });
    request();
  }
  /** Scales by `factor` about the point (px, py) of the canvas, in CSS pixels. */
  function zoomAbout(factor, px, py, animate = true) {
    const from = animate ? goal : view;
    const scale = clamp(from.scale * factor, 1, maxScale());
    const dx = px - size.midX;
    const dy = py - size.midY;
    const u = view.cx + dx / (size.fitW * view.scale);
    const v = view.cy + dy / (size.fitH * view.scale);
    const fit = (s) => ({ scale: s, cx: u - dx / (size.fitW * s), cy: v - dy / (size.fitH * s) });
    moveTo(fit(scale), animate, fit);
  }
  function step(elapsed) {
    const pull = 1 - Math.exp(-elapsed / 75);
    const scale = view.scale * (goal.scale / view.scale) ** pull;
    const near = Math.abs(Math.log(goal.scale / scale)) < 0.002;
    const next = goal.anchor
      ? bounded(goal.anchor(scale))
      : { scale, cx: view.cx + (goal.cx - view.cx) * pull, cy: view.cy + (goal.cy - view.cy) * pull };
    const rest = Math.hypot(goal.cx - next.cx, goal.cy - next.cy) * size.fitW * goal.scale;
    Object.assign(view, near && (goal.anchor || rest < 0.4) ? { scale: goal.scale, cx: goal.cx, cy: goal.cy } : next);
  }
  const moving = () => view.scale !== goal.scale || view.cx !== goal.cx || view.cy !== goal.cy;
  const toScreen = (u, v) => [size.midX + (u - view.cx) * size.fitW * view.scale, size.midY + (v - view.cy) * size.fitH * view.scale];
  const toMap = (px, py) => [view.cx + (px - size.midX) / (size.fitW * view.scale), view.cy + (py - size.midY) / (size.fitH * view.scale)];

  let before = 0;
  function request() {
    if (!frame) frame = requestAnimationFrame(tick);
  }
  function tick(now) {
    frame = 0;
    if (moving()) step(clamp(now - before, 1, 50));
    before = now;
    draw(now);
    if (moving() || dissolve) request();
  }
  function measure() {
    const box = canvas.getBoundingClientRect();
    const dpr = Math.min(window.devicePixelRatio || 1, 3);
    const [w, hgt] = [Math.max(box.width, 1), Math.max(box.height, 1)];
    canvas.width = Math.round(w * dpr);
    canvas.height = Math.round(hgt * dpr);
    const narrow = w < 600;
    const [gap, top, bottom] = narrow ? [12, 28, LOOK.room ?? 100] : [30, 30, 30]; // a narrow map stays clear of the legend
    const unit = Math.min((w - 2 * gap) / groundWidth, (hgt - top - bottom) / groundHeight);
    size = { w, h: hgt, dpr, fitW: groundWidth * unit, fitH: groundHeight * unit, midX: w / 2, midY: (top + hgt - bottom) / 2 };
    dissolve = null;
    buildLegend();
    moveTo(goal, false);
  }

  // ---------------------------------------------------------------- painting

  const offscreen = () => {
    const sheet = document.createElement("canvas");
    return { sheet, ctx: sheet.getContext("2d") };
  };
  const WIDENED = 30000; // so many nodes at most are painted one by one only to be seen at all
  const bitmap = offscreen(); // the layer's colours, one pixel a cell
  const bitmapLost = offscreen(); // opaque where the cell is faded
  const overlay = offscreen(); // hatching, then the grid, in screen size
  let bitmapOf = "";

  const hatch = (() => {
    const { sheet, ctx: pen } = offscreen();
    sheet.width = sheet.height = 6;
    pen.lineWidth = 1;
    // A light line for dark cells, and a dark one beside it for light cells.
    for (const [colour, beside] of [["rgba(190,182,205,.19)", 0], ["rgba(8,7,11,.3)", 1.4]]) {
      pen.strokeStyle = colour;
      pen.beginPath();
      for (const shift of [-6, 0, 6]) { pen.moveTo(shift + beside, 6); pen.lineTo(shift + 6 + beside, 0); }
      pen.stroke();
    }
    return ctx.createPattern(sheet, "repeat");
  })();

  /** Which of the palettes a cell is painted with: 0 plainly, 1 faded where that is switched on, 2 always. */
  const sheetOf = (lost) => (state.fade || lost > 1 ? lost : 0);
  const skipped = (layer, i) => !layer.area[i] || (LOOK.dropped && !state.fade && layer.lost[i]);

  /** The layer as bitmaps, painter's order: coarse nodes first, what lies inside them over them. */
  function paintBitmaps(layer, number) {
    const name = `${number} ${state.fade}`;
    const bits = Math.min(layer.maxLevel, RASTER_BITS);
    const side = 1 << bits;
    if (bitmapOf === name) return side;
    bitmapOf = name;
    const paint = new Uint32Array(side * side);
    const lost = new Uint32Array(side * side);
    for (let i = 0; i < layer.n; i++) {
      if (skipped(layer, i)) continue;
      const shift = bits - layer.level[i];
      const extent = shift >= 0 ? 2 ** shift : 1;
      const x = shift >= 0 ? layer.x[i] * extent : Math.floor(layer.x[i] / 2 ** -shift);
      const y = shift >= 0 ? layer.y[i] * extent : Math.floor(layer.y[i] / 2 ** -shift);
      const colour = PAINT.words[sheetOf(layer.lost[i])][layer.shade[i]];
      for (let row = y; row < y + extent; row++) {
        paint.fill(colour, row * side + x, row * side + x + extent);
        lost.fill(layer.lost[i] === 1 ? 0xffffffff : 0, row * side + x, row * side + x + extent);
      }
    }
    for (const [target, pixels] of [[bitmap, paint], [bitmapLost, lost]]) {
      target.sheet.width = target.sheet.height = side;
      target.ctx.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), side, side), 0, 0);
    }
    return side;
  }

  /** Forgets what was painted: cells have other colours now. */
  function repaint() {
    bitmapOf = "";
    tipOf = null;
    for (const layer of layers) layer.order = null;
    request();
  }

  /** The region's rectangle in device pixels. */
  function frameOf() {
    const [left, top] = toScreen(0, 0);
    const k = size.dpr;
    return { left: left * k, top: top * k, w: size.fitW * view.scale * k, h: size.fitH * view.scale * k };
  }
  /** What painting cell by cell needs, found once a layer: an order and three facts on each node. */
  function plan(layer) {
    if (layer.order) return layer; // `repaint` takes the order away
    const at = (level, x, y) => layer.places.has(keyOf(level, x, y));
    layer.order = Uint32Array.from({ length: layer.n }, (_, i) => i);
    // Within a level nodes do not overlap, so any order does, and equal colours side by side are quick.
    layer.order.sort((a, b) => layer.level[a] - layer.level[b] || layer.lost[a] - layer.lost[b] || layer.shade[a] - layer.shade[b]);
    layer.eastEdge = new Uint8Array(layer.n); // 1: no equal neighbour draws this edge as its own western one
    layer.southEdge = new Uint8Array(layer.n);
    layer.overLost = new Uint8Array(layer.n); // 1: lies on a node that is faded
    for (let i = 0; i < layer.n; i++) {
      let [level, x, y] = [layer.level[i], layer.x[i], layer.y[i]];
      layer.eastEdge[i] = at(level, x + 1, y) ? 0 : 1;
      layer.southEdge[i] = at(level, x, y + 1) ? 0 : 1;
      while (level-- > 0) {
        const above = layer.places.get(keyOf(level, (x >>= 1), (y >>= 1)));
        if (above === undefined) continue;
        layer.overLost[i] = layer.lost[above];
        break;
      }
    }
    return layer;
  }
  /** Calls visit(i, x0, y0, x1, y1) with whole device pixels for every node in sight, coarse first. */
  function eachInSight(layer, f, visit) {
    for (const i of plan(layer).order) {
      const side = 2 ** layer.level[i];
      const least = layer.lost[i] ? 0 : LOOK.least * size.dpr;
      const spare = Math.max(least - f.w / side, 0) / 2; // so much a cell too small to see is widened, each way
      const x0 = Math.round(f.left + (layer.x[i] / side) * f.w - spare);
      const x1 = Math.round(f.left + ((layer.x[i] + 1) / side) * f.w + spare);
      if (x1 < 0 || x0 > canvas.width) continue;
      const tall = Math.max(least - f.h / side, 0) / 2;
      const y0 = Math.round(f.top + (layer.y[i] / side) * f.h - tall);
      const y1 = Math.round(f.top + ((layer.y[i] + 1) / side) * f.h + tall);
      if (y1 < 0 || y0 > canvas.height) continue;
      visit(i, Math.max(x0, -9), Math.max(y0, -9), Math.min(x1, canvas.width + 9), Math.min(y1, canvas.height + 9));
    }
  }
  function blit(target, source, side, f) {
    // Only the part in sight, so that no coordinate grows beyond what the canvas draws exactly.
    const [px, py] = [f.w / side, f.h / side];
    const sx = clamp(Math.floor(-f.left / px), 0, side);
    const sy = clamp(Math.floor(-f.top / py), 0, side);
    const ex = clamp(Math.ceil((canvas.width - f.left) / px), 0, side);
    const ey = clamp(Math.ceil((canvas.height - f.top) / py), 0, side);
    if (ex <= sx || ey <= sy) return;
    target.imageSmoothingEnabled = px < 1;
    target.imageSmoothingQuality = "high";
    target.drawImage(source.sheet, sx, sy, ex - sx, ey - sy, f.left + sx * px, f.top + sy * py, (ex - sx) * px, (ey - sy) * py);
  }
  function clearOverlay() {
    const pen = overlay.ctx;
    if (overlay.sheet.width !== canvas.width || overlay.sheet.height !== canvas.height) {
      overlay.sheet.width = canvas.width;
      overlay.sheet.height = canvas.height;
    } else pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.globalCompositeOperation = "source-over";
    return pen;
  }

  function drawCells(layer, f) {
    const side = paintBitmaps(layer, state.layer);
    const small = f.w / 2 ** layer.maxLevel < LOOK.least * size.dpr && layer.n < WIDENED;
    const exact = !small && (layer.maxLevel <= RASTER_BITS || f.w / side <= 1);
    const pen = state.fade && LOOK.hatched ? clearOverlay() : null;
    if (LOOK.ground) {
      ctx.fillStyle = LOOK.ground;
      ctx.fillRect(f.left, f.top, f.w, f.h);
    }
    if (exact) {
      blit(ctx, bitmap, side, f);
      if (pen) blit(pen, bitmapLost, side, f);
    } else {
      let colour = "";
      eachInSight(layer, f, (i, x0, y0, x1, y1) => {
        if (skipped(layer, i)) return;
        const next = PAINT.css[sheetOf(layer.lost[i])][layer.shade[i]];
        if (next !== colour) ctx.fillStyle = colour = next;
        ctx.fillRect(x0, y0, x1 - x0, y1 - y0);
        if (!pen) return;
        if (layer.lost[i] === 1) pen.fillRect(x0, y0, x1 - x0, y1 - y0);
        else if (layer.overLost[i]) pen.clearRect(x0, y0, x1 - x0, y1 - y0);
      });
    }
    if (!pen) return;
    pen.globalCompositeOperation = "source-in";
    // The hatching sticks to the ground as the map moves.
    pen.setTransform(size.dpr, 0, 0, size.dpr, f.left % (6 * size.dpr), f.top % (6 * size.dpr));
    pen.fillStyle = hatch;
    pen.fillRect(-12, -12, size.w + 24, size.h + 24);
    pen.setTransform(1, 0, 0, 1, 0, 0);
    pen.fillStyle = "#000";
    ctx.drawImage(overlay.sheet, 0, 0);
  }

  function drawGrid(layer, f) {
    const pen = clearOverlay();
    const line = Math.max(1, Math.round(size.dpr * 0.75));
    pen.fillStyle = "#fff";
    eachInSight(layer, f, (i, x0, y0, x1, y1) => {
      if (x1 - x0 < 4 * line || skipped(layer, i)) return; // finer than the eye: the lines would be all there is to see
      pen.fillRect(x0, y0, x1 - x0, line);
      pen.fillRect(x0, y0, line, y1 - y0);
      if (layer.southEdge[i]) pen.fillRect(x0, y1, x1 - x0, line);
      if (layer.eastEdge[i]) pen.fillRect(x1, y0, line, y1 - y0 + line);
    });
    ctx.globalAlpha = 0.3;
    ctx.drawImage(overlay.sheet, 0, 0);
    ctx.globalAlpha = 1;
  }

  /** Meridians and parallels, lettered along the top and the left. */
  function drawGraticule() {
    const k = size.dpr;
    const pixelsPerDegree = (size.fitW * view.scale) / width;
    const tall = (size.fitH * view.scale) / height;
    ctx.save();
    ctx.scale(k, k);
    ctx.font = "12px " + getComputedStyle(document.body).fontFamily;
    ctx.lineWidth = 1 / k;
    ctx.lineJoin = "round";
    const label = (text, x, y, align) => {
      ctx.textAlign = align;
      ctx.lineWidth = 3;
      ctx.strokeStyle = "rgba(8,7,11,.75)";
      ctx.strokeText(text, x, y);
      ctx.fillStyle = "#c9c1b6";
      ctx.fillText(text, x, y);
      ctx.lineWidth = 1 / k;
    };
    const axis = (perDegree, least, from, to, visit) => {
      const stepSize = niceStep(least / perDegree);
      const digits = Math.max(0, Math.ceil(-Math.log10(stepSize) - 1e-9));
      for (let n = Math.ceil(from / stepSize); n * stepSize <= to; n++) visit(n * stepSize, digits);
    };
    const [lonA, lonB] = [0, size.w].map((x) => region.west + toMap(x, 0)[0] * width);
    const [latB, latA] = [0, size.h].map((y) => region.north - toMap(0, y)[1] * height);
    ctx.strokeStyle = "rgba(255,255,255,.09)";
    const lines = [];
    axis(pixelsPerDegree, 150, lonA, lonB, (lon, digits) => lines.push([true, toScreen((lon - region.west) / width, 0)[0], degrees(lon, digits, "E", "W")]));
    axis(tall, 120, latA, latB, (lat, digits) => lines.push([false, toScreen(0, (region.north - lat) / height)[1], degrees(lat, digits, "N", "S")]));
    ctx.beginPath();
    for (const [upright, at] of lines) {
      ctx.moveTo(upright ? at : 0, upright ? 0 : at);
      ctx.lineTo(upright ? at : size.w, upright ? size.h : at);
    }
    ctx.stroke();
    for (const [upright, at, text] of lines) {
      if (upright && at > 90 && at < size.w - 40) label(text, at, 16, "center");
      if (!upright && at > 30 && at < size.h - (size.w < 900 ? 130 : 110)) label(text, 8, at - 5, "left");
    }
    ctx.restore();
  }

  function drawHover(layer, f) {
    const point = state.hover ? toMap(...state.hover) : state.keyboard ? [view.cx, view.cy] : null;
    const spot = point && spotAt(layer, ...point);
    const k = size.dpr;
    if (spot) {
      const side = 2 ** spot.level;
      const spare = LOOK.least ? Math.max((LOOK.least + 3) * k - f.w / side, 0) / 2 : 0;
      const box = [f.left + (spot.x / side) * f.w - spare, f.top + (spot.y / side) * f.h - spare, f.w / side + 2 * spare, f.h / side + 2 * spare];
      for (const [line, colour] of [[3.5, "rgba(0,0,0,.65)"], [1.6, "#fff"]]) {
        ctx.lineWidth = line * k;
        ctx.strokeStyle = colour;
        ctx.strokeRect(...box);
      }
    }
    if (state.keyboard && !state.hover) {
      const [x, y] = [size.midX * k, size.midY * k];
      ctx.lineWidth = 1.5 * k;
      ctx.strokeStyle = "#fff";
      ctx.beginPath();
      for (const [dx, dy] of [[1, 0], [-1, 0], [0, 1], [0, -1]]) {
        ctx.moveTo(x + 4 * dx * k, y + 4 * dy * k);
        ctx.lineTo(x + 11 * dx * k, y + 11 * dy * k);
      }
      ctx.stroke();
    }
    showTip(layer, spot, point);
  }

  function draw(now) {
    const layer = layers[state.layer];
    const f = frameOf();
    ctx.setTransform(1, 0, 0, 1, 0, 0);
    ctx.fillStyle = "#08070b";
    ctx.fillRect(0, 0, canvas.width, canvas.height);
    drawCells(layer, f);
    if (state.grid) drawGrid(layer, f);
    if (dissolve) {
      dissolve.start ??= now;
      const left = 1 - (now - dissolve.start) / 420;
      if (left > 0 && !moving()) {
        ctx.globalAlpha = left * left * (3 - 2 * left);
        ctx.drawImage(dissolve.sheet, 0, 0);
        ctx.globalAlpha = 1;
      } else dissolve = null;
    }
    ctx.strokeStyle = "rgba(255,255,255,.2)";
    ctx.lineWidth = size.dpr;
    ctx.strokeRect(Math.round(f.left) - size.dpr / 2, Math.round(f.top) - size.dpr / 2, f.w + size.dpr, f.h + size.dpr);
    drawGraticule();
    drawHover(layer, f);
    showScale();
  }

  function showScale() {
    const perPixel = groundWidth / (size.fitW * view.scale);
    const length = niceStep((size.w < 600 ? 70 : 120) * perPixel * 0.5);
    $("scale-text").textContent = metres(length);
    $("scale-bar").style.width = `${length / perPixel}px`;
  }

  // ---------------------------------------------------------------- the value under the pointer

  const tip = $("tip");
  let tipOf = null;
  function showTip(layer, spot, point) {
    if (!spot) {
      tip.hidden = true;
      tipOf = null;
      return;
    }
    const [lon, lat] = [region.west + point[0] * width, region.north - point[1] * height];
    const text = tipWords(layer, spot, lon, lat);
    const name = `${state.layer} ${spot.level} ${spot.x} ${spot.y}`;
    if (tipOf !== name) {
      tipOf = name;
      fillTip(tip, text);
    } else tip.querySelector("dd:last-of-type").textContent = text.rows.at(-1)[1]; // the place
    tip.hidden = false;
    const [px, py] = state.hover || [size.midX, size.midY];
    tip.style.transform = `translate(${tipAt(px, tip.offsetWidth, size.w)}px,${tipAt(py, tip.offsetHeight, size.h)}px)`;
  }
  let speaking = 0;
  function speakCentre() {
    clearTimeout(speaking);
    speaking = setTimeout(() => {
      const spot = spotAt(layers[state.layer], goal.cx, goal.cy);
      const [lon, lat] = [region.west + goal.cx * width, region.north - goal.cy * height];
      const text = spot && tipWords(layers[state.layer], spot, lon, lat);
      $("spoken").textContent = text ? aloud(text) : "Outside the map";
    }, 350);
  }
  /** Goes to a cell and reads it out, as if the crosshair had been moved there. */
  function flyTo(layer, i) {
    const side = 2 ** layer.level[i];
    Object.assign(state, { hover: null, keyboard: true });
    moveTo({ scale: Math.max((44 * side) / size.fitW, 1.5), cx: (layer.x[i] + 0.5) / side, cy: (layer.y[i] + 0.5) / side });
    speakCentre();
    if ($("map").getBoundingClientRect().top < -80) $("map").scrollIntoView({ block: "start" });
  }

  // ---------------------------------------------------------------- pointer and keys

  const pointers = new Map();
  let travelled = 0;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  function pan(dx, dy, animate = false) {
    const from = animate ? goal : view;
    moveTo({ scale: from.scale, cx: from.cx - dx / (size.fitW * from.scale), cy: from.cy - dy / (size.fitH * from.scale) }, animate);
  }
  const spread = () => {
    const [[ax, ay], [bx, by]] = [...pointers.values()];
    return { x: (ax + bx) / 2, y: (ay + by) / 2, gap: Math.max(Math.hypot(ax - bx, ay - by), 1) };
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, at(event));
    state.keyboard = false;
    travelled = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    const here = at(event);
    const earlier = pointers.get(event.pointerId);
    if (!earlier) {
      if (event.pointerType !== "touch") state.hover = here;
      request();
      return;
    }
    if (pointers.size === 2) {
      const old = spread();
      pointers.set(event.pointerId, here);
      const now = spread();
      pan(now.x - old.x, now.y - old.y);
      zoomAbout(now.gap / old.gap, now.x, now.y, false);
      travelled += 99;
      state.hover = null;
    } else if (pointers.size === 1) {
      pointers.set(event.pointerId, here);
      travelled += Math.hypot(here[0] - earlier[0], here[1] - earlier[1]);
      state.hover = event.pointerType === "touch" && travelled > 6 ? null : here;
      canvas.classList.toggle("dragging", travelled > 2);
      pan(here[0] - earlier[0], here[1] - earlier[1]);
    }
  });
  const release = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    canvas.classList.remove("dragging");
    if (event.pointerType === "touch") state.hover = travelled <= 6 && event.type === "pointerup" ? at(event) : null;
    request();
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "touch") return;
    state.hover = null;
    request();
  });
  canvas.addEventListener("wheel", (event) => {
    const pixels = event.deltaY * [1, 30, 400][event.deltaMode];
    if (pixels > 0 && goal.scale <= 1.0001) return; // nothing left to show: the page scrolls on to the report
    event.preventDefault();
    zoomAbout(Math.exp(-clamp(pixels, -400, 400) * (event.ctrlKey ? 0.01 : 0.0022)), ...at(event));
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => zoomAbout(event.shiftKey ? 0.5 : 2, ...at(event)));
  canvas.addEventListener("focus", () => {
    state.keyboard = canvas.matches(":focus-visible");
    request();
  });
  canvas.addEventListener("blur", () => {
    state.keyboard = false;
    request();
  });

  const zoomCentre = (factor) => moveTo({ scale: goal.scale * factor, cx: goal.cx, cy: goal.cy });
  const reset = () => moveTo({ scale: 1, cx: 0.5, cy: 0.5 });
  const KEYS = {
    ArrowLeft: () => pan(90, 0, true), ArrowRight: () => pan(-90, 0, true),
    ArrowUp: () => pan(0, 90, true), ArrowDown: () => pan(0, -90, true),
    "+": () => zoomCentre(1.5), "=": () => zoomCentre(1.5), "-": () => zoomCentre(1 / 1.5), _: () => zoomCentre(1 / 1.5),
    0: reset, Home: reset, g: () => setGrid(!state.grid), f: () => setFade(!state.fade),
  };
  canvas.addEventListener("keydown", (event) => {
    const act = KEYS[event.key] || KEYS[event.key.toLowerCase()];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    state.keyboard = true;
    state.hover = null;
    act();
    speakCentre();
  });
  $("zoom-in").addEventListener("click", () => zoomCentre(1.8));
  $("zoom-out").addEventListener("click", () => zoomCentre(1 / 1.8));
  $("reset").addEventListener("click", reset);
