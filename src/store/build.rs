//! The program carries the migrations: a new one makes a new program.

fn main() {
    println!("cargo:rerun-if-changed=../../migrations");
}
