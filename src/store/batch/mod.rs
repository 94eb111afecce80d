//! The write path: a writer, and what its transactions load and save. A batch finds and locks the rows that its commands need (`load`), and
//! sends what they changed (`save`) in a few statements (`script`). The other work of a writer is in `maintenance`.

pub(crate) mod load;
pub(crate) mod save;
pub(crate) mod script;
pub(crate) mod writer;
