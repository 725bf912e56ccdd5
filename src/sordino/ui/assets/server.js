// Asks the server. What has not changed is not sent again; when the server is gone, the page says so.

const seen = new Map();  // address -> the last answer and the name of its contents
const MOST = 40;

export class Refused extends Error {}

export async function ask(path, query, signal) {
  const given = Object.entries(query || {}).filter(([, v]) => v !== undefined && v !== null && v !== "");
  const text = new URLSearchParams(given.map(([k, v]) => [k, String(v)])).toString();
  const address = `/api/${path}${text ? `?${text}` : ""}`, known = seen.get(address);
  let response;
  try {
    response = await fetch(address, { cache: "no-store", signal, headers: known ? { "If-None-Match": known.tag } : {} });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    trouble("The view has ended, or it cannot be reached. Start it again with \u201csordino ui\u201d; this page then needs the new address.");
    throw new Refused("The view cannot be reached.");
  }
  if (response.status === 403) {
    trouble("This view was started anew. Open the address that the terminal shows now.");
    throw new Refused("The address is no longer valid.");
  }
  trouble("");
  if (response.status === 304 && known) return { ...known.data, same: true };
  const data = await response.json();
  if (data.error) throw new Refused(data.error);
  seen.delete(address);
  seen.set(address, { tag: response.headers.get("ETag") || "", data });
  if (seen.size > MOST) seen.delete(seen.keys().next().value);
  return data;
}

function trouble(text) {
  const place = document.getElementById("trouble");
  if (place.textContent !== text) place.textContent = text;
  place.hidden = !text;
}
