//! The pre-trained encoder, which travels inside the program.

use std::path::Path;

use azulejo_bert::Result;
use azulejo_bert::checkpoint::Folder;

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
///
/// # Errors
/// If a file cannot be written; none has changed then.
pub fn unpack_encoder(dir: &Path) -> Result<()> {
    let mut folder = Folder::open(dir)?;
    for (name, bytes) in FILES {
        folder.add(name, |out| out.write_all(bytes))?;
    }
    folder.commit()
}
