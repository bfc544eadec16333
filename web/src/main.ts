// Begins a page: reads its view, and hands the first screen to the product of its kind.
import { button, h } from "./dom";
import { Permalink } from "./permalink";
import type { Product, Tools } from "./product";
import { showMap } from "./products/map";
import { Theme } from "./theme";
import type { PageView } from "./views";

type Kind = PageView["body"]["kind"];
/** A module of products/ for each kind of body. */
const PRODUCTS: Partial<Record<Kind, Product>> = { map: showMap };

/** The view that the page carries: base64 of gzip of JSON. */
export async function readView(text: string): Promise<PageView> {
  const bytes = Uint8Array.from(atob(text.trim()), (one) => one.charCodeAt(0));
  return (await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json()) as PageView;
}

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
      Promise.resolve(act()).catch((error: unknown) => say(`That failed: ${String(error)}`));
    });
    bar.append(made);
    return made;
  };
  const copy = addButton("Copy link", async () => {
    await navigator.clipboard.writeText(link.address());
    copy.textContent = "Copied";
    say("The link is in the clipboard");
    setTimeout(() => (copy.textContent = "Copy link"), 1500);
  });
  const other = (): string => (theme.mode === "dark" ? "Light" : "Dark");
  const mode = addButton(other(), () => theme.toggle());
  theme.onChange(() => (mode.textContent = other()));
  return { link, theme, say, addButton };
}

async function begin(): Promise<void> {
  const [data, stage, bar] = ["view", "stage", "tools"].map((id) => document.getElementById(id));
  if (!data || !stage || !bar) return;
  const view = await readView(data.textContent);
  const product = PRODUCTS[view.body.kind];
  if (!product) return;
  const root = h("div", { class: `product ${view.body.kind}` });
  stage.append(root);
  document.documentElement.classList.add("live");
  product(view, root, toolsOf(bar));
}

void begin();
