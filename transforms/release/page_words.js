// Words, numbers, elements and tips: what every page needs. All parts share one scope (page_shell.py).

  const data = JSON.parse(document.getElementById("sfumato-data").textContent);
  const { manifest } = data;
  const $ = (id) => document.getElementById(id);
  document.documentElement.classList.add("live"); // before this, the style sheet shows only what needs no script
  const still = matchMedia("(prefers-reduced-motion: reduce)");

  // ---------------------------------------------------------------- words and numbers

  const get = (path, fallback = null) => {
    let value = manifest;
    for (const key of path.split(".")) value = value !== null && typeof value === "object" ? value[key] : undefined;
    return value ?? fallback;
  };
  const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
  const minus = (text) => text.replace(/^-/, "\u2212");
  const rounded = (value, digits) => minus(value.toLocaleString("en", { maximumFractionDigits: digits }));
  const significant = (value, digits = 3) => minus(value.toLocaleString("en", { maximumSignificantDigits: digits }));
  const whole = (value) => (isNumber(value) ? rounded(value, Math.abs(value) < 9.95 ? 1 : 0).replace(/^\u22120$/, "0") : "unknown");
  const large = (value) => {
    const [size, unit] = [[1e12, "trillion"], [1e9, "billion"], [1e6, "million"]].find(([least]) => value >= least * 0.9995) || [1, ""];
    return unit ? `${significant(value / size)} ${unit}` : whole(value);
  };
  /** A power of ten as toExponential writes it, such as -9 or +12, in small raised digits. */
  const raised = (power) => [...power.replace("+", "")].map((one) => (one === "-" ? "\u207b" : "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"[one])).join("");
  /** A small number, such as a delta: powers of ten below a thousandth. */
  const tiny = (value) => {
    if (!(value > 0 && value < 1e-3)) return significant(value);
    const [mantissa, power] = value.toExponential(2).split("e");
    return `${Number(mantissa) === 1 ? "" : `${Number(mantissa)} \u00d7 `}10${raised(power)}`;
  };
  const bytes = (bits) => {
    const b = bits / 8;
    return b >= 1e6 ? `${significant(b / 1e6)} MB` : b >= 1e4 ? `${significant(b / 1e3)} kB` : `${rounded(b, 0)} bytes`;
  };
  const percent = (share) => `${rounded(100 * share, share > 0.01 && share < 0.99 ? 0 : 1)}%`;
  /** Room for few characters only: 250k, 1.2M. */
  const short = (value) => {
    const [size, unit] = [[1e9, "B"], [1e6, "M"], [1e4, "k"]].find(([least]) => value >= least) || [1, ""];
    return `${significant(value / (unit === "k" ? 1e3 : size))}${unit}`;
  };
  const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
  const plural = (n, one, many = `${one}s`) => `${whole(n)} ${n === 1 ? one : many}`;
  /** The smallest of 1, 2, 5 times a power of ten that is not below `least`. */
  function niceStep(least) {
    const ten = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 5, 10].map((m) => m * ten).find((s) => s >= least * 0.999);
  }

  // ---------------------------------------------------------------- ground and colours

  const METRES_PER_DEGREE = (6371008.8 * Math.PI) / 180;
  const metres = (m) => (m >= 995 ? `${significant(m / 1000)} km` : m >= 1 ? `${significant(m)} m` : `${significant(m * 100)} cm`);
  const degrees = (value, digits, plus, less) => `${Math.abs(value).toFixed(digits)}° ${value < 0 ? less : plus}`;
  const place = (lon, lat, digits) => `${degrees(lat, digits, "N", "S")}, ${degrees(lon, digits, "E", "W")}`;
  /** 256 colours, [red, green, blue], from a palette's text. */
  function coloursOf(text) {
    const stops = text.match(/.{6}/g).map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
    return Array.from({ length: 256 }, (_, i) => {
      const at = (i / 255) * (stops.length - 1);
      const low = Math.min(Math.floor(at), stops.length - 2);
      return stops[low].map((part, c) => Math.round(part + (stops[low + 1][c] - part) * (at - low)));
    });
  }
  const lighten = ([r, g, b]) => [r + 9, g + 8, b + 13].map((part) => Math.min(part, 255)); // zero is not the void around
  const greyed = ([r, g, b]) => {
    const grey = 0.3 * r + 0.55 * g + 0.15 * b;
    return [r, g, b].map((part, c) => Math.round((0.12 * part + 0.62 * grey) * 0.72 + [19, 18, 25][c]));
  };

  // ---------------------------------------------------------------- elements

  /** An element from text and elements; attributes by name; no markup is ever parsed. */
  function h(tag, attributes, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) element.setAttribute(name, value);
    for (const child of children.flat(9)) if (child !== null && child !== undefined && child !== false) element.append(child);
    return element;
  }
  /** The same for SVG, numbers with two decimals at most; children that are not true are left out. */
  function svg(tag, attributes, ...children) {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, typeof value === "number" ? Number(value.toFixed(2)) : value);
    element.append(...children.flat(9).filter(Boolean));
    return element;
  }

  // ---------------------------------------------------------------- tips

  /** What a tip says, {value, margin, rows}, where rows are pairs of facts: as elements, and as a sentence to be read out. */
  const fillTip = (tip, { value, margin, rows }) => tip.replaceChildren(h("p", { class: "value" }, value), h("p", { class: "margin" }, margin),
    h("dl", null, rows.map(([term, text]) => [h("dt", null, term), h("dd", null, text)])));
  const aloud = ({ value, margin, rows }) => `${value}, ${margin}. ${rows.map((row) => row.join(": ")).join(". ")}`;
  /** Where a tip of `extent` begins along `room` pixels: `away` behind a place, or before it where it would run over the end. */
  const tipAt = (at, extent, room, away = 18) => Math.round(clamp(at + away + extent > room - 6 ? at - away - extent : at + away, 6, Math.max(room - extent - 6, 6)));
