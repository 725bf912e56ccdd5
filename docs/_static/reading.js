// A page that was opened from the disk may not read other pages, so that the search shows titles there, without extracts.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;

// What is wider than the page scrolls by itself, and can be reached with the keyboard.
function reach() {
  for (const part of document.querySelectorAll("pre, .table-wrapper, .drawing-frame"))
    if (part.scrollWidth > part.clientWidth) part.tabIndex = 0;
}

// The theme calls the captions of the menu headings, and does not say of which level.
addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.ariaLevel = "2";
  reach();
});
addEventListener("resize", reach);
