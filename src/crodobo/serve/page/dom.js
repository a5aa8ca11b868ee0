// Parts of the page, by their id.

export const at = (id) => document.getElementById(id);

export function put(id, content) {
  if (at(id).textContent !== String(content)) at(id).textContent = content;
}

// A notice; hidden if it has no sentence.
export function say(id, sentence, kind = "") {
  const place = at(id);
  place.hidden = !sentence;
  place.className = `notice ${kind}`;
  if (place.textContent !== sentence) place.textContent = sentence;
}
