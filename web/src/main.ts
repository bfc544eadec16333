// Begins a page: reads its view, and hands the first screen to the product of its kind.
import { button, h, svg } from "./dom";
import { embedded, Permalink } from "./permalink";
import type { Product, Tools } from "./product";
import { showBars } from "./products/bars";
import { showCurve } from "./products/curve";
import { showFlows } from "./products/flows";
import { showMap } from "./products/map";
import { showRanges } from "./products/ranges";
import { showMoments } from "./products/moments";
import { showTimeline } from "./products/timeline";
import { unpack } from "./packed";
import { makeSortable } from "./tables";
import { Theme } from "./theme";
import type { PageView } from "./views";

type Kind = PageView["body"]["kind"];
/** A module of products/ for each kind of body. */
const PRODUCTS: Record<Kind, Product> = { bars: showBars, curve: showCurve, flows: showFlows, map: showMap, moments: showMoments, ranges: showRanges, timeline: showTimeline };

/** The shapes beside the texts of the tool bar's buttons. */
const ICONS: Record<string, string> = {
  "Copy link": "M6.5 9.5l3-3M7 5l1.6-1.6a2.8 2.8 0 014 4L11 9M9 11l-1.6 1.6a2.8 2.8 0 01-4-4L5 7",
  Dark: "M13 9.5A5.5 5.5 0 116.5 3 4.5 4.5 0 0013 9.5z", Light: "M13 9.5A5.5 5.5 0 116.5 3 4.5 4.5 0 0013 9.5z",
  Picture: "M2 3.5h12v9H2zM2 11l3.5-3.5 3 3L11 8l3 3M10.5 6h.1", SVG: "M2 3.5h12v9H2zM2 11l3.5-3.5 3 3L11 8l3 3M10.5 6h.1",
  Table: "M2 3.5h12v9H2zM2 6.5h12M2 9.5h12M6.5 3.5v9",
};

const HINTS: Record<string, string> = {
  Picture: "Download what is shown as a picture (PNG)", Table: "Download the table (CSV)", SVG: "Download the chart (SVG)",
};

/** What the buttons that download write. */
const FORMATS: Record<string, string> = { Picture: "PNG", Table: "CSV" };

function toolsOf(bar: HTMLElement): Tools {
  const [link, theme] = [new Permalink(), new Theme()];
  const spoken = h("p", { class: "unseen", "aria-live": "polite", id: "spoken" });
  document.body.append(spoken);
  let speaking = 0;
  const say = (text: string): void => {
    clearTimeout(speaking);
    speaking = window.setTimeout(() => (spoken.textContent = text), 300);
  };
  const addButton = (label: string, act: () => void | Promise<void>): HTMLButtonElement => {
    const made = button("", () => {
      Promise.resolve(act()).catch((error: unknown) => say(`Failed: ${String(error)}`));
    });
    const shape = ICONS[label];
    if (label in HINTS) made.title = HINTS[label];
    if (shape) made.append(svg("svg", { viewBox: "0 0 16 16", "aria-hidden": "true" }, svg("path", { d: shape })));
    made.append(label);
    if (label in FORMATS) made.append(h("span", { class: "format" }, `\u00a0(${FORMATS[label]})`));
    bar.append(made);
    return made;
  };
  if (!embedded) {
    const copy = addButton("Copy link", async () => {
      await navigator.clipboard.writeText(link.address());
      (copy.lastChild as Text).data = "Copied";
      say("Link copied to the clipboard");
      setTimeout(() => ((copy.lastChild as Text).data = "Copy link"), 1500);
    });
  }
  const other = (): string => (theme.mode === "dark" ? "Light" : "Dark");
  const mode = addButton(other(), () => theme.toggle());
  theme.onChange(() => ((mode.lastChild as Text).data = other()));
  return { link, theme, say, addButton };
}

/** Links to parts of the page scroll. In another document a browser would follow them to that document's address. */
function scrollToParts(): void {
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[href^='#']") : null;
    if (!link) return;
    event.preventDefault();
    document.getElementById(link.getAttribute("href")?.slice(1) ?? "")?.scrollIntoView();
  });
}

/** Keeps the document loading until the view is shown: `chromium --print-to-pdf` prints as soon as it has loaded. Returns what ends that. */
function keepLoading(): () => void {
  const frame = h("iframe", { hidden: true });
  document.body.append(frame);
  frame.contentDocument?.open(); // a document that is open delays the load event of the one around it
  return () => frame.remove();
}

async function begin(): Promise<void> {
  const [data, stage, bar] = ["view", "stage", "tools"].map((id) => document.getElementById(id));
  if (!data || !stage || !bar) return;
  const view = await unpack<PageView>(data.textContent);
  const product = PRODUCTS[view.body.kind];
  const root = h("div", { class: `product ${view.body.kind}` });
  stage.append(root);
  const measure = (): void => document.documentElement.style.setProperty("--above", `${Math.round(stage.offsetTop)}px`); // a map fills what the header leaves
  measure();
  new ResizeObserver(measure).observe(bar);
  document.documentElement.classList.add("live");
  product(view, root, toolsOf(bar));
  if (embedded) scrollToParts();
  makeSortable(document.getElementById("report") ?? document);
}

void begin().finally(keepLoading());
