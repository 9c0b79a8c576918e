// Conversations and settings in this browser's storage.
const CHATS = "anchorstream.chats", SELECTED = "anchorstream.selected";

export function load() {
  try {
    const found = JSON.parse(localStorage.getItem(CHATS) ?? "[]");
    return Array.isArray(found) ? found.filter((chat) => chat?.id && Array.isArray(chat.messages)) : [];
  } catch {
    return [];
  }
}

export function save(chats, current) {
  try {
    localStorage.setItem(CHATS, JSON.stringify(chats));
    localStorage.setItem(SELECTED, current?.id ?? "");
    return true;
  } catch {
    return false;
  }
}

export const selected = () => localStorage.getItem(SELECTED);
export const setting = (name) => localStorage.getItem(`anchorstream.${name}`);

export function set(name, value) {
  localStorage.setItem(`anchorstream.${name}`, value);
}
