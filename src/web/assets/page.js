// What scripts add to the pages: they work without.
"use strict";
(() => {
  const REFRESH_MS = 3000;
  // Addresses of this server begin with its root: the path below which a proxy has it, or nothing.
  const { root } = document.currentScript.dataset;
  const { lang } = document.documentElement;
  const t = (english, ukrainian) => lang === "uk" ? ukrainian : english;
  const plurals = new Intl.PluralRules(lang);

  // Times stay true while the page is open.
  const relative = (at) => {
    const ms = Date.now() - at, past = ms >= 0, s = Math.floor(Math.abs(ms) / 1000);
    if (s < 2) return t("now", "щойно");
    const minutes = Math.floor(s / 60), hours = Math.floor(s / 3600), days = Math.floor(s / 86400);
    const [h, min, sec] = [t("h", "год"), t("min", "хв"), t("s", "с")];
    const told = t({ one: "day", other: "days" }, { one: "день", few: "дні", many: "днів" })[plurals.select(days)];
    if (past && days === 1) return t("yesterday", "вчора");
    const text = days >= 2 ? `${days} ${told}`
      : hours ? `${hours} ${h} ${minutes % 60} ${min}` : minutes ? `${minutes} ${min} ${s % 60} ${sec}` : `${s} ${sec}`;
    return past ? t(`${text} ago`, `${text} тому`) : t(`in ${text}`, `за ${text}`);
  };
  const tellTimes = () => document.querySelectorAll("time[data-at]").forEach((time) => {
    const text = relative(Number(time.dataset.at));
    if (time.textContent !== text) time.textContent = text;
  });
  setInterval(tellTimes, 5000);

  // The time in the zone of the person, beside that of the server.
  const local = new Intl.DateTimeFormat(lang, { dateStyle: "medium", timeStyle: "long" });
  document.addEventListener("pointerover", ({ target }) => {
    if (target.matches("time[data-at]") && !target.title.includes("\n")) target.title += `\n${local.format(Number(target.dataset.at))}`;
  });

  // Where the menu is too wide for the window, the entry of this page is in sight.
  document.querySelector("nav a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });

  // The other pages go away again.
  const more = document.getElementById("more");
  document.addEventListener("click", ({ target }) => { if (more && !more.contains(target)) more.open = false; });
  more?.addEventListener("keydown", ({ key }) => {
    if (key !== "Escape") return;
    more.open = false;
    more.querySelector("summary").focus();
  });

  // The text is that of another element, or of another page. Parts of the page are loaded again, and their buttons with them.
  const offerCopies = () => navigator.clipboard && document.querySelectorAll("[data-copy], [data-copy-from]").forEach((button) => { button.hidden = false; });
  document.addEventListener("click", async ({ target }) => {
    const { copy, copyFrom } = target.dataset ?? {};
    if (!copy && !copyFrom) return;
    const text = async () => {
      if (copy) return document.getElementById(copy).textContent;
      const answer = await fetch(copyFrom);
      if (!answer.ok) throw new Error(answer.statusText);
      return answer.text();
    };
    try {
      await navigator.clipboard.writeText(await text());
      target.textContent = t("Copied", "Скопійовано");
    } catch {
      target.textContent = t("Not copied", "Не скопійовано");
    }
  });
  offerCopies();

  // The box in the head of a table selects all rows that are shown.
  const offerAll = () => document.querySelectorAll("[data-all]").forEach((box) => { box.hidden = false; });
  document.addEventListener("change", ({ target }) => {
    const all = target.form?.querySelector("[data-all]");
    if (!all) return;
    const boxes = [...target.form.querySelectorAll("input[name=ids]")];
    if (target === all) boxes.forEach((box) => { box.checked = all.checked; });
    all.checked = boxes.every((box) => box.checked);
  });
  offerAll();

  // Live: the server says that something has changed, and the page loads its live parts again.
  const live = document.getElementById("live");
  let isOn = true, isDue = false, isBusy = false, last = Date.now();
  const isInUse = (part) => {
    const active = document.activeElement;
    return part.contains(active) && active !== part && active.tagName !== "SUMMARY" || part.querySelector("input:checked");
  };
  // What somebody has folded or unfolded stays so: an element is known by the id above it and its place below that.
  const foldsOf = (part) => {
    const places = {};
    return new Map([...part.querySelectorAll("details")].map((details) => {
      const { id } = details.closest("[id]");
      places[id] = (places[id] ?? 0) + 1;
      return [`${id} ${places[id]}`, details];
    }));
  };
  // The summary in the fresh part that had the focus in this one.
  const keepFolds = (part, fresh) => {
    const shown = foldsOf(part);
    let focused = null;
    foldsOf(fresh).forEach((details, key) => {
      const known = shown.get(key);
      if (!known) return;
      details.open = known.open;
      if (known.querySelector(":scope > summary") === document.activeElement) focused = details.querySelector(":scope > summary");
    });
    return focused;
  };
  const refresh = async () => {
    if (!isOn || !isDue || isBusy || document.hidden || Date.now() - last < REFRESH_MS) return;
    [isDue, isBusy, last] = [false, true, Date.now()];
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html", "Bloom-Again": "1" } });
      if (answer.redirected) return location.assign(answer.url);
      if (!answer.ok) return;
      const loaded = new DOMParser().parseFromString(await answer.text(), "text/html");
      document.querySelectorAll("[data-live][id]").forEach((part) => {
        const fresh = loaded.getElementById(part.id);
        if (!fresh || isInUse(part)) return;
        const focused = keepFolds(part, fresh);
        if (fresh.innerHTML === part.innerHTML) return;
        part.replaceChildren(...fresh.childNodes);
        focused?.focus({ preventScroll: true });
      });
      document.title = loaded.title;
      const [icon, freshIcon] = [document, loaded].map((page) => page.querySelector("link[rel=icon]"));
      if (icon.getAttribute("href") !== freshIcon.getAttribute("href")) icon.href = freshIcon.getAttribute("href");
      tellTimes();
      offerCopies();
      offerAll();
    } catch { isDue = true; } finally { isBusy = false; }
  };
  const setLive = (on) => {
    isOn = on;
    live.setAttribute("aria-pressed", String(on));
    live.textContent = on ? t("Live", "Наживо") : t("Paused", "Зупинено");
  };
  if (live && document.querySelector("[data-live]")) {
    live.hidden = false;
    live.addEventListener("click", () => setLive(!isOn));
    // A browser keeps few connections to a server: pages in the background give theirs back.
    let source = null;
    const follow = () => {
      if (document.hidden) { source?.close(); source = null; return; }
      if (source) return;
      source = new EventSource(`${root}/live`);
      source.addEventListener("change", () => { isDue = true; refresh(); });
      isDue = true;
    };
    document.addEventListener("visibilitychange", follow);
    window.addEventListener("pagehide", () => source?.close());
    follow();
    isDue = false;
    setInterval(refresh, 1000);
  }

  // Keys.
  const help = document.getElementById("help");
  const places = { o: "/", t: "/tasks", w: "/workers", n: "/tasks/new", l: "/leases", a: "/audit" };
  let isGoing = false;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select, dialog")) return;
    const going = isGoing;
    isGoing = false;
    if (going && places[event.key]) location.assign(root + places[event.key]);
    else if (event.key === "g") isGoing = true;
    else if (event.key === "/") document.querySelector("[data-filter]")?.focus();
    else if (event.key === "p" && live) setLive(!isOn);
    else if (event.key === "?" && help) help.showModal();
    else return;
    event.preventDefault();
  });
})();
