// Tables in an element of class `sortable`: a click on a heading, or Enter, sorts by its column; again: the other way.
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll(".sortable table")) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    const value = (row, column) => row.cells[column].textContent.trim();
    heads.forEach((head, column) => {
      const sort = () => {
        const sign = head.ariaSort === "ascending" ? -1 : 1;
        for (const other of heads) other.removeAttribute("aria-sort");
        head.ariaSort = sign === 1 ? "ascending" : "descending";
        const order = (a, b) => value(a, column).localeCompare(value(b, column), "en", { numeric: true });
        body.append(...[...body.rows].sort((a, b) => sign * order(a, b)));
      };
      head.tabIndex = 0;
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => event.key === "Enter" && sort());
    });
  }
});
