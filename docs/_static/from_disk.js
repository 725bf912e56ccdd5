// A page that was opened from the disk may not read other pages, so that the search shows titles there, without extracts.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
