//! Rebuilds the program after a change of its embedded migrations.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
