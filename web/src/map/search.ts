// The search for a place on the map: by a name of the geography, or by a name or an id of a zone of the layer that is shown.
import { h } from "../dom";
import type { Named } from "./ground";

const OFFERED = 500; // names in the list that a browser shows while a reader writes

const PLAIN: Record<string, string> = { ł: "l", ø: "o", đ: "d", ı: "i", ß: "ss", æ: "ae", œ: "oe" };

/** A name in lower case without accents, as one types it on another keyboard. */
const folded = (name: string): string => name.toLowerCase().normalize("NFD").replace(/\p{M}/gu, "").replace(/[łøđıßæœ]/g, (one) => PLAIN[one]);

/** The place whose name or id a reader means: the same, else one that begins so, else one that contains it; with or without upper case and accents. */
export function meant(names: readonly Named[], text: string): Named | null {
  const wanted = folded(text.trim());
  if (!wanted) return null;
  const tests: ((name: string) => boolean)[] = [(name) => name === wanted, (name) => name.startsWith(wanted), (name) => name.includes(wanted)];
  for (const test of tests) {
    const found = names.find(({ name }) => test(folded(name))) ?? names.find(({ id }) => id !== undefined && test(folded(id)));
    if (found) return found;
  }
  return null;
}

export class Search {
  private readonly input = h("input", { type: "search", list: "names", placeholder: "Find a place", "aria-label": "Find a place", autocomplete: "off", enterkeyhint: "search" });
  private readonly list = h("datalist", { id: "names" });
  private readonly answer = h("p", { role: "status" });
  readonly element = h("div", { class: "find", hidden: true }, this.input, this.list, this.answer);
  private names: readonly Named[] = [];

  /** `show` moves the map to a place. */
  constructor(show: (found: Named) => void) {
    this.input.addEventListener("input", () => { // a choice from the list
      this.refuse("");
      const found = this.names.find(({ name }) => name === this.input.value);
      if (found) show(found);
    });
    this.input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      const wanted = this.input.value.trim();
      const found = meant(this.names, wanted);
      this.refuse(found ? "" : wanted);
      if (found) show(found);
    });
  }

  /** Says that no name is like a text; takes that back for an empty one. */
  private refuse(text: string): void {
    this.input.setAttribute("aria-invalid", String(text !== ""));
    this.answer.textContent = text && `No place or zone contains “${text}”`;
  }

  /** Offers these names; without any there is no search. */
  offer(names: readonly Named[]): void {
    this.names = names;
    this.element.hidden = names.length === 0;
    this.input.placeholder = names.some(({ name, id }) => id !== undefined && id !== name) ? "Find a place or an id" : "Find a place";
    this.list.replaceChildren(...names.slice(0, OFFERED).map(({ name }) => h("option", { value: name })));
  }
}
