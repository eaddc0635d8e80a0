//! The planner beside what others have measured. Machines are fitted on one point each; the page
//! `docs/reference/planner-points.md` is generated from these tests.
#![cfg(test)]

mod crosspipe;
mod formulas;
mod limit;
mod points;
mod table;
