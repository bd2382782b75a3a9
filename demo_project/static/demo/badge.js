// Keeps the badge of an open page fresh; each look is one Redis GET on the server.
const badge = document.querySelector("[data-badge]");
if (badge) {
  setInterval(async () => {
    if (document.hidden) return;
    const reply = await fetch(badge.dataset.badge).catch(() => null);
    if (!reply?.ok || reply.redirected) return;
    const { unread } = await reply.json();
    badge.textContent = unread;
    badge.hidden = unread === 0;
  }, 3000);
}
