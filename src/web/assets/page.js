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
  const duration = (ms) => {
    const s = Math.floor(ms / 1000), minutes = Math.floor(s / 60), hours = Math.floor(s / 3600), days = Math.floor(s / 86400);
    const [h, min, sec] = [t("h", "год"), t("min", "хв"), t("s", "с")];
    const told = t({ one: "day", other: "days" }, { one: "день", few: "дні", many: "днів" })[plurals.select(days)];
    return days >= 2 ? `${days} ${told}`
      : hours ? `${hours} ${h} ${minutes % 60} ${min}` : minutes ? `${minutes} ${min} ${s % 60} ${sec}` : `${s} ${sec}`;
  };
  const relative = (at) => {
    const ms = Date.now() - at, past = ms >= 0;
    if (Math.abs(ms) < 2000) return t("now", "щойно");
    if (past && Math.floor(ms / 86400000) === 1) return t("yesterday", "вчора");
    const text = duration(Math.abs(ms));
    return past ? t(`${text} ago`, `${text} тому`) : t(`in ${text}`, `за ${text}`);
  };
  const tellTimes = () => {
    const tell = (element, text) => { if (element.textContent !== text) element.textContent = text; };
    document.querySelectorAll("time[data-at]").forEach((time) => tell(time, relative(Number(time.dataset.at))));
    // How long something has lasted that goes on.
    document.querySelectorAll("[data-since]").forEach((span) => tell(span, duration(Math.max(0, Date.now() - Number(span.dataset.since)))));
  };
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

  // What is typed as a prompt or a reply stays in this tab until its form was accepted, because a session may end meanwhile.
  const kept = (act) => { try { return act(sessionStorage); } catch { return null; } };
  // It is only for whoever typed it, and goes when another person signs in.
  const DRAFT = "draft:", SENT = "sent";
  const own = `${DRAFT}${document.body.dataset.who}:`;
  const draftOfPage = own + location.pathname;
  const forget = (isMeant) => kept((store) => Object.keys(store).filter((key) => key.startsWith(DRAFT) && isMeant(key)).forEach((key) => store.removeItem(key)));
  if ("who" in document.body.dataset) forget((key) => !key.startsWith(own));
  const typed = document.querySelector("textarea[name=prompt]");
  const sent = kept((store) => store.getItem(SENT));
  kept((store) => store.removeItem(SENT));
  // The page after a form that was accepted says what was done.
  if (sent && new URLSearchParams(location.search).has("done")) kept((store) => store.removeItem(sent));
  const toldKept = document.getElementById("kept");
  if (toldKept && sent && kept((store) => store.getItem(sent))) toldKept.hidden = false;
  const draft = kept((store) => store.getItem(draftOfPage));
  if (typed && draft && !typed.value) {
    typed.value = draft;
    const folded = typed.closest("details");
    if (folded) folded.open = true;
  }
  typed?.addEventListener("input", () => kept((store) => typed.value ? store.setItem(draftOfPage, typed.value) : store.removeItem(draftOfPage)));
  document.addEventListener("submit", ({ target }) => {
    if (typed && target.contains(typed)) kept((store) => store.setItem(SENT, draftOfPage));
    // A form may have a field of the name `action`, which hides the property.
    if (target.getAttribute("action") === `${root}/sign-out`) forget(() => true);
  });

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

  // An option of a question can be chosen with a click, too.
  const offerOptions = () => document.querySelectorAll("[data-fill] strong").forEach((option) => {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: option.textContent });
    const list = option.closest("[data-fill]"), answer = document.getElementById(list.dataset.fill);
    const isOneOfSeveral = "several" in list.dataset;
    if (isOneOfSeveral) button.setAttribute("aria-pressed", "false");
    button.addEventListener("click", () => {
      if (isOneOfSeveral) button.setAttribute("aria-pressed", String(button.getAttribute("aria-pressed") !== "true"));
      const chosen = isOneOfSeveral ? [...list.querySelectorAll("[aria-pressed=true]")] : [button];
      answer.value = chosen.map((one) => one.textContent).join(", ");
      answer.focus();
    });
    option.replaceWith(button);
  });
  offerOptions();

  // Live: the server says that something has changed, and the page loads its live parts again.
  const live = document.getElementById("live");
  let isOn = true, isDue = false, isBusy = false, last = 0;
  const isInUse = (part) => {
    const active = document.activeElement;
    const isIdle = active === part || active?.matches("summary, .events");
    return part.contains(active) && !isIdle || part.querySelector("input:checked");
  };
  const isWrittenOn = () => document.activeElement?.matches("main :is(input, textarea, select)")
    || [...document.querySelectorAll("main :is(input, textarea)")].some((field) => field.value !== field.defaultValue);
  // The box of events stays at its end, or where somebody has scrolled it: at the event that was the first in sight.
  const END_PX = 40;
  const toEnd = (box) => { box.scrollTop = box.scrollHeight; };
  document.querySelectorAll(".events[data-follow]").forEach(toEnd);
  const keepScroll = (part) => {
    const box = part.querySelector(".events");
    if (!box) return () => document.querySelectorAll(`#${part.id} .events[data-follow]`).forEach(toEnd);
    const hadFocus = box === document.activeElement;
    const isAtEnd = box.scrollHeight > box.clientHeight && box.scrollHeight - box.clientHeight - box.scrollTop < END_PX;
    const fits = box.scrollHeight <= box.clientHeight;
    const { top } = box.getBoundingClientRect();
    const first = [...box.querySelectorAll("li[id]")].find((event) => event.getBoundingClientRect().bottom > top);
    const before = first?.getBoundingClientRect().top;
    const { scrollTop } = box;
    return () => {
      const fresh = part.querySelector(".events");
      if (!fresh) return;
      if (isAtEnd || fits && fresh.dataset.follow !== undefined) toEnd(fresh);
      else {
        fresh.scrollTop = scrollTop;
        const same = first && document.getElementById(first.id);
        if (same) fresh.scrollTop += same.getBoundingClientRect().top - before;
      }
      if (hadFocus) fresh.focus({ preventScroll: true });
    };
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
      // A page that leads to the sign-in is left where it is, with what is typed on it.
      if (answer.redirected && new URL(answer.url).pathname === `${root}/sign-in`) return signedOut();
      if (answer.redirected) return location.assign(answer.url);
      if (!answer.ok) return;
      const loaded = new DOMParser().parseFromString(await answer.text(), "text/html");
      // A page whose parts have another order by now, such as that of a run that has ended, is loaded whole, unless somebody writes on it.
      const [shape, freshShape] = [document, loaded].map((page) => page.querySelector("[data-shape]")?.dataset.shape);
      if (shape !== freshShape && !isWrittenOn()) return location.reload();
      document.querySelectorAll("[data-live][id]").forEach((part) => {
        const fresh = loaded.getElementById(part.id);
        if (!fresh || isInUse(part)) return;
        const focused = keepFolds(part, fresh);
        if (fresh.innerHTML === part.innerHTML) return;
        const scroll = keepScroll(part);
        part.replaceChildren(...fresh.childNodes);
        scroll();
        focused?.focus({ preventScroll: true });
      });
      document.title = loaded.title;
      const [icon, freshIcon] = [document, loaded].map((page) => page.querySelector("link[rel=icon]"));
      if (icon.getAttribute("href") !== freshIcon.getAttribute("href")) icon.href = freshIcon.getAttribute("href");
      tellTimes();
      offerCopies();
      offerAll();
      offerOptions();
    } catch { isDue = true; } finally { isBusy = false; }
  };
  // The page is live while the connection works by which the server tells of changes.
  let isLost = false, isSignedOut = false, seen = Date.now();
  const tellLive = () => {
    if (!live) return;
    const told = t(`Offline: last update ${relative(seen)}`, `Немає зв’язку: останнє оновлення ${relative(seen)}`);
    const text = !isOn ? t("Paused", "Зупинено") : isLost ? told : t("Live", "Наживо");
    if (live.textContent !== text) live.textContent = text;
    live.classList.toggle("lost", isLost && isOn);
    live.setAttribute("aria-pressed", String(isOn));
  };
  const setLive = (on) => {
    isOn = on;
    tellLive();
  };
  const signedOut = () => {
    if (isSignedOut || !live) return;
    isSignedOut = true;
    live.hidden = true;
    const link = document.createElement("a");
    const next = new URLSearchParams({ next: location.pathname.slice(root.length) + location.search });
    link.id = "signed-out";
    link.href = `${root}/sign-in?${next}`;
    link.textContent = t("Signed out: sign in again", "Сеанс закінчився: увійти знову");
    live.after(link);
  };
  if (live && document.querySelector("[data-live]")) {
    live.hidden = false;
    live.addEventListener("click", () => setLive(!isOn));
    // A browser keeps few connections to a server: pages in the background give theirs back.
    let source = null;
    const works = () => source?.readyState === EventSource.OPEN;
    // Browsers try again by themselves after a connection has broken, but not after an answer that is no stream.
    const whyNot = async () => {
      const asked = new AbortController();
      try {
        const answer = await fetch(`${root}/live`, { redirect: "manual", signal: asked.signal });
        const isPage = answer.type === "opaqueredirect" || answer.ok && !answer.headers.get("content-type")?.startsWith("text/event-stream");
        if (isPage || [401, 403].includes(answer.status)) return signedOut();
      } catch { /* It is still offline. */ } finally { asked.abort(); }
      setTimeout(follow, REFRESH_MS);
    };
    const follow = () => {
      if (document.hidden || isSignedOut) {
        if (works()) seen = Date.now();
        source?.close();
        source = null;
        return;
      }
      if (source && source.readyState !== EventSource.CLOSED) return;
      const own = source = new EventSource(`${root}/live`);
      let hasWorked = false;
      own.addEventListener("open", () => {
        // What has changed meanwhile, nobody has told.
        if (isLost) isDue = true;
        [isLost, hasWorked, seen] = [false, true, Date.now()];
        tellLive();
      });
      own.addEventListener("change", () => { isDue = true; seen = Date.now(); refresh(); });
      own.addEventListener("error", () => {
        if (own !== source) return;
        if (hasWorked) seen = Date.now();
        [isLost, hasWorked] = [true, false];
        tellLive();
        if (own.readyState === EventSource.CLOSED) whyNot();
      });
      isDue = true;
    };
    document.addEventListener("visibilitychange", follow);
    window.addEventListener("pagehide", () => { source?.close(); source = null; });
    window.addEventListener("pageshow", ({ persisted }) => { if (persisted) follow(); });
    follow();
    isDue = false;
    setInterval(() => { refresh(); if (isLost) tellLive(); }, 1000);
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
