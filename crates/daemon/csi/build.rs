//! Generates the messages and services of the Container Storage Interface, without `protoc`.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto/csi.proto");
    let files = protox::compile(["csi.proto"], ["proto"])?;
    // Its comments are for no Rust documentation: paths in them are those of other languages.
    let builder = tonic_prost_build::configure().build_client(false).disable_comments(["."]);
    Ok(builder.compile_fds(files)?)
}
