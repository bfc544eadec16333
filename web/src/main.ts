// Begins a page: reads its view, and hands the first screen to the product of its kind.
import { button, h } from "./dom";
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
    const made = button(label, () => {
      Promise.resolve(act()).catch((error: unknown) => say(`Failed: ${String(error)}`));
    });
    bar.append(made);
    return made;
  };
  if (!embedded) {
    const copy = addButton("Copy link", async () => {
      await navigator.clipboard.writeText(link.address());
      copy.textContent = "Copied";
      say("Link copied to the clipboard");
      setTimeout(() => (copy.textContent = "Copy link"), 1500);
    });
  }
  const other = (): string => (theme.mode === "dark" ? "Light" : "Dark");
  const mode = addButton(other(), () => theme.toggle());
  theme.onChange(() => (mode.textContent = other()));
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

void begin();
