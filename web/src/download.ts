// Files that the page makes itself: pictures of what is shown, and tables.

/** Offers bytes or a text as a file. */
export function offer(name: string, content: Blob | string, type = "text/csv;charset=utf-8"): void {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** A table as CSV (RFC 4180); null is an empty field. */
export function csv(heads: string[], rows: (string | number | boolean | null)[][]): string {
  const field = (value: string | number | boolean | null): string => {
    const text = value === null ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return [heads, ...rows].map((row) => row.map(field).join(",") + "\r\n").join("");
}

/** A canvas as a PNG file. */
export function pngOf(canvas: HTMLCanvasElement): Promise<Blob> {
  return new Promise((done, fail) => {
    canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("the browser made no picture"))), "image/png");
  });
}

/** A chart as an SVG file of its own, with the computed styles that its elements need. */
export function svgOf(chart: SVGSVGElement): Blob {
  const copy = chart.cloneNode(true) as SVGSVGElement;
  const kept = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family", "font-weight", "text-anchor"];
  const from = [chart, ...chart.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((element, i) => {
    const style = getComputedStyle(from[i]);
    for (const name of kept) element.setAttribute(name, style.getPropertyValue(name));
    element.removeAttribute("class");
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new Blob([new XMLSerializer().serializeToString(copy)], { type: "image/svg+xml" });
}

/** A chart as a PNG file of twice its size on the screen, over a ground of the given colour. */
export async function pngOfSvg(chart: SVGSVGElement, ground: string): Promise<Blob> {
  const { width, height } = chart.getBoundingClientRect();
  const canvas = Object.assign(document.createElement("canvas"), { width: 2 * width, height: 2 * height });
  const picture = new Image(2 * width, 2 * height);
  const bytes = new Uint8Array(await svgOf(chart).arrayBuffer());
  picture.src = `data:image/svg+xml;base64,${btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""))}`;
  await picture.decode();
  const pen = canvas.getContext("2d");
  if (!pen) throw new Error("the browser has no canvas");
  pen.fillStyle = ground;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return pngOf(canvas);
}
