// A browser whose system has no proper language, as in a container, names one that its own Intl does not know. English stands in for it.
try {
  new Intl.NumberFormat(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US" });
}
