//! Embeds the migrations in the program: `(version, name, SQL)` of each, in their order, as the constants `SQLITE` and `POSTGRES`.
//!
//! The macro of sqlx would do the same, but sqlx and all of its drivers would have to be compiled a second time, for the host.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?).join("../../migrations");
    println!("cargo:rerun-if-changed={}", root.display());
    let mut code = String::new();
    for (name, dialect) in [("SQLITE", "sqlite"), ("POSTGRES", "postgres")] {
        let mut files = fs::read_dir(root.join(dialect))?.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>()?;
        files.sort();
        let _ = writeln!(code, "pub(crate) const {name}: &[(i64, &str, &str)] = &[");
        for file in files {
            let stem = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let (version, name) = stem.split_once('_').ok_or_else(|| io::Error::other(format!("{stem}: expected NNNN_name.sql")))?;
            let version: i64 = version.parse().map_err(|_| io::Error::other(format!("{stem}: expected NNNN_name.sql")))?;
            let _ = writeln!(code, "    ({version}, {:?}, include_str!({file:?})),", name.replace('_', " "));
        }
        code.push_str("];\n");
    }
    fs::write(Path::new(&env::var("OUT_DIR").map_err(io::Error::other)?).join("migrations.rs"), code)
}
