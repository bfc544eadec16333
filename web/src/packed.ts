// What a page and the maps of nights carry: base64 of gzip of JSON.

export async function unpack<T>(text: string): Promise<T> {
  const bytes = Uint8Array.from(atob(text.trim()), (one) => one.charCodeAt(0));
  return (await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json()) as T;
}
