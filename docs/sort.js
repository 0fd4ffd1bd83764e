// Tables in an element of class `sortable`: a click on a heading, or Enter, sorts by its column; again: the other way.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".sortable table")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    const text = (row, column) => row.cells[column].textContent.trim();
    heads.forEach((head, column) => {
      const sort = () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const order = (a, b) => text(a, column).localeCompare(text(b, column), "en", { numeric: true });
        body.append(...[...body.rows].sort((a, b) => (down ? order(b, a) : order(a, b))));
      };
      head.tabIndex = 0;
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
    });
  }
});
