// Looks again every now and then, while the page is visible; stops when the page is left.

export function again(look, every) {  // `look` returns the seconds until the next look, or nothing for `every`
  let timer = 0, over = false, busy = false;
  async function once() {
    clearTimeout(timer);
    if (over || busy) return;
    busy = true;
    let wait = every;
    try {
      if (!document.hidden) wait = (await look()) || every;
    } catch {
      wait = Math.max(every, 3);
    }
    busy = false;
    if (!over) timer = setTimeout(once, 1000 * wait);
  }
  const visible = () => { if (!document.hidden) once(); };
  document.addEventListener("visibilitychange", visible);
  once();
  return {
    now: () => { busy = false; once(); },
    stop: () => {
      over = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", visible);
    },
  };
}
