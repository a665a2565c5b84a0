//! The pre-trained encoder, which travels inside the program.

use std::fs;
use std::io;
use std::path::Path;

const FILES: [(&str, &[u8]); 4] = [
    ("config.json", include_bytes!("../../assets/config.json")),
    ("model.safetensors", include_bytes!("../../assets/model.safetensors")),
    (
        "tokenizer_config.json",
        include_bytes!("../../assets/tokenizer_config.json"),
    ),
    ("vocab.txt", include_bytes!("../../assets/vocab.txt")),
];

/// Writes the encoder into `dir`, which is made when absent, as a folder in Hugging Face's layout.
pub fn unpack_encoder(dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    FILES
        .iter()
        .try_for_each(|(name, bytes)| fs::write(dir.join(name), bytes))
}
