// What a product is given: one module of products/ for each kind of body, registered in main.ts.
import type { Caption } from "./map/picture";
import type { Permalink } from "./permalink";
import type { Theme } from "./theme";
import type { PageView } from "./views";

export interface Tools {
  /** What the hash of the address holds: place, layer, measure, night, and what else a product keeps there. */
  readonly link: Permalink;
  /** Light or dark. */
  readonly theme: Theme;
  /** Reads a text out to screen readers, after a short pause; the last of several is read. */
  say(text: string): void;
  /** Adds a button to the page's tool bar, which has "Copy link" already where the page has an address. */
  addButton(label: string, act: () => void | Promise<void>): HTMLButtonElement;
}

/** What is written on a saved map: heading, place and days, then the page's figures, its guarantee and the geography's source. */
export const captionOf = (view: PageView): Caption => ({
  title: view.heading ?? view.headline,
  subtitle: [view.heading && view.headline, view.place, view.period].filter(Boolean).join(" · "),
  notes: [view.chips.map(({ term, text }) => `${term}: ${text}`).join(" · "), view.alarm ?? view.guarantee, view.basemap?.source ? `Geography: ${view.basemap.source}` : ""],
});

/** Fills `root`, the empty first screen, with what needs a script. The static report stands under it already. */
export type Product = (view: PageView, root: HTMLElement, tools: Tools) => void;
