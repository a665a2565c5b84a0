//! The sizes of a model, read from and written to Hugging Face's `config.json`.
//!
//! Two architectures share one encoder: BERT (with token types) and DistilBERT (without, and with dropout in other
//! places). Everything that differs between them is decided here or in [`params`](crate::params); the forward pass
//! only asks.

use crate::error::{Error, Result};
use serde_json::{Map, Value, json};

/// Which family of checkpoints a model belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// `BertForQuestionAnswering` and its relatives.
    Bert,
    /// `DistilBertForQuestionAnswering` and its relatives.
    DistilBert,
}

impl Architecture {
    /// The name that `config.json` uses, which is also the prefix of the encoder's tensors.
    pub fn name(self) -> &'static str {
        match self {
            Architecture::Bert => "bert",
            Architecture::DistilBert => "distilbert",
        }
    }
}

/// The sizes and rates of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Family of the checkpoint.
    pub architecture: Architecture,
    /// Rows of the word embedding table (`v`).
    pub vocabulary: usize,
    /// Width of the residual stream (`h`).
    pub hidden: usize,
    /// Encoder layers (`l`).
    pub layers: usize,
    /// Attention heads (`a`); the head width is `hidden / heads`.
    pub heads: usize,
    /// Width of the feed-forward part (`f`).
    pub intermediate: usize,
    /// Rows of the position table: the longest sequence the model can read.
    pub positions: usize,
    /// Rows of the token type table; 0 for DistilBERT, which has none.
    pub token_types: usize,
    /// Added to the variance in every LayerNorm.
    pub layer_norm_eps: f32,
    /// Dropout rate after the embeddings and after the two sublayers.
    pub hidden_dropout: f32,
    /// Dropout rate of the attention probabilities.
    pub attention_dropout: f32,
    /// Dropout rate before the answer head (DistilBERT only).
    pub head_dropout: f32,
    /// Standard deviation of new weights.
    pub initializer_range: f32,
    /// The padding token, whose embedding row receives no gradient.
    pub padding_id: u32,
    /// Everything that the file said, kept so that a saved copy loses nothing.
    raw: Map<String, Value>,
}

impl Config {
    /// A BERT of the given sizes with the published rates (dropout 0.1, eps 1e-12, 512 positions, 2 token types).
    pub fn bert(vocabulary: usize, hidden: usize, layers: usize, heads: usize, intermediate: usize) -> Result<Config> {
        Config::from_value(json!({
            "model_type": "bert",
            "architectures": ["BertForQuestionAnswering"],
            "vocab_size": vocabulary,
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": intermediate,
            "hidden_act": "gelu",
            "hidden_dropout_prob": 0.1,
            "attention_probs_dropout_prob": 0.1,
            "max_position_embeddings": 512,
            "type_vocab_size": 2,
            "initializer_range": 0.02,
            "layer_norm_eps": 1e-12,
            "pad_token_id": 0,
            "position_embedding_type": "absolute",
        }))
    }

    /// Reads the text of a `config.json`.
    pub fn from_json(text: &str) -> Result<Config> {
        let value: Value = serde_json::from_str(text).map_err(|e| Error::Config {
            reason: format!("not JSON: {e}"),
        })?;
        Config::from_value(value)
    }

    /// Reads a parsed `config.json`.
    pub fn from_value(value: Value) -> Result<Config> {
        let Value::Object(raw) = value else {
            return Err(Error::Config {
                reason: "expected a JSON object at the top".into(),
            });
        };
        let reader = Reader(&raw);
        let architecture = match raw.get("model_type").and_then(Value::as_str) {
            Some("bert") => Architecture::Bert,
            Some("distilbert") => Architecture::DistilBert,
            Some(other) => {
                return Err(Error::Config {
                    reason: format!("model_type is \"{other}\", expected bert or distilbert"),
                });
            }
            // Files older than the field; only DistilBERT has `n_layers`.
            None if raw.contains_key("n_layers") => Architecture::DistilBert,
            None if raw.contains_key("num_hidden_layers") => Architecture::Bert,
            None => {
                return Err(Error::Config {
                    reason: "model_type is missing, expected bert or distilbert".into(),
                });
            }
        };
        let config = match architecture {
            Architecture::Bert => {
                reader.only("hidden_act", "gelu")?;
                reader.only("position_embedding_type", "absolute")?;
                Config {
                    architecture,
                    vocabulary: reader.size("vocab_size")?,
                    hidden: reader.size("hidden_size")?,
                    layers: reader.layers("num_hidden_layers")?,
                    heads: reader.size("num_attention_heads")?,
                    intermediate: reader.size("intermediate_size")?,
                    positions: reader.size_or("max_position_embeddings", 512)?,
                    token_types: reader.size_or("type_vocab_size", 2)?,
                    layer_norm_eps: reader.number("layer_norm_eps", 1e-12)?,
                    hidden_dropout: reader.rate("hidden_dropout_prob", 0.1)?,
                    attention_dropout: reader.rate("attention_probs_dropout_prob", 0.1)?,
                    head_dropout: 0.0,
                    initializer_range: reader.number("initializer_range", 0.02)?,
                    padding_id: reader.padding()?,
                    raw: Map::new(),
                }
            }
            Architecture::DistilBert => {
                reader.only("activation", "gelu")?;
                Config {
                    architecture,
                    vocabulary: reader.size("vocab_size")?,
                    hidden: reader.size("dim")?,
                    layers: reader.layers("n_layers")?,
                    heads: reader.size("n_heads")?,
                    intermediate: reader.size("hidden_dim")?,
                    positions: reader.size_or("max_position_embeddings", 512)?,
                    token_types: 0,
                    layer_norm_eps: 1e-12,
                    hidden_dropout: reader.rate("dropout", 0.1)?,
                    attention_dropout: reader.rate("attention_dropout", 0.1)?,
                    head_dropout: reader.rate("qa_dropout", 0.1)?,
                    initializer_range: reader.number("initializer_range", 0.02)?,
                    padding_id: reader.padding()?,
                    raw: Map::new(),
                }
            }
        };
        if !config.hidden.is_multiple_of(config.heads) {
            return Err(Error::Config {
                reason: format!(
                    "hidden size {} is not a multiple of {} heads",
                    config.hidden, config.heads
                ),
            });
        }
        Ok(Config { raw, ..config })
    }

    /// The `config.json` to save beside a question-answering model: the file that was read, with `architectures`
    /// set to what is saved.
    pub fn to_json(&self) -> Value {
        let mut raw = self.raw.clone();
        let class = match self.architecture {
            Architecture::Bert => "BertForQuestionAnswering",
            Architecture::DistilBert => "DistilBertForQuestionAnswering",
        };
        raw.insert("model_type".into(), json!(self.architecture.name()));
        raw.insert("architectures".into(), json!([class]));
        Value::Object(raw)
    }

    /// The same model with every dropout rate zero: evaluation, and tests that compare values.
    pub fn without_dropout(&self) -> Config {
        Config {
            hidden_dropout: 0.0,
            attention_dropout: 0.0,
            head_dropout: 0.0,
            ..self.clone()
        }
    }

    /// Width of one attention head (`d`).
    pub fn head_width(&self) -> usize {
        self.hidden / self.heads
    }

    /// Dropout rate after the attention's output projection: DistilBERT has none there.
    pub fn attention_output_dropout(&self) -> f32 {
        match self.architecture {
            Architecture::Bert => self.hidden_dropout,
            Architecture::DistilBert => 0.0,
        }
    }
}

/// Reads fields of a JSON object; every error names the field and what came.
struct Reader<'a>(&'a Map<String, Value>);

impl Reader<'_> {
    fn size(&self, field: &str) -> Result<usize> {
        // Far above any published model, and low enough that products of two sizes fit in 64 bits.
        self.at_most(field, 1 << 24)
    }

    fn layers(&self, field: &str) -> Result<usize> {
        // Likewise; with this the number of all parameters fits too, and the table of their names stays small.
        self.at_most(field, 1 << 12)
    }

    fn at_most(&self, field: &str, largest: u64) -> Result<usize> {
        match self.0.get(field).map(|v| (v, v.as_u64())) {
            Some((_, Some(n))) if (1..=largest).contains(&n) => Ok(n as usize),
            Some((v, _)) => Err(Error::Config {
                reason: format!("{field} is {v}, expected 1 to {largest}"),
            }),
            None => Err(Error::Config {
                reason: format!("{field} is missing"),
            }),
        }
    }

    fn size_or(&self, field: &str, default: usize) -> Result<usize> {
        if self.0.contains_key(field) {
            self.size(field)
        } else {
            Ok(default)
        }
    }

    fn number(&self, field: &str, default: f64) -> Result<f32> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(default as f32),
            Some(v) => match v.as_f64() {
                Some(n) if n > 0.0 && n.is_finite() => Ok(n as f32),
                _ => Err(Error::Config {
                    reason: format!("{field} is {v}, expected a positive number"),
                }),
            },
        }
    }

    fn rate(&self, field: &str, default: f64) -> Result<f32> {
        match self.0.get(field) {
            None | Some(Value::Null) => Ok(default as f32),
            Some(v) => match v.as_f64() {
                Some(n) if (0.0..1.0).contains(&n) => Ok(n as f32),
                _ => Err(Error::Config {
                    reason: format!("{field} is {v}, expected a rate from 0 to below 1"),
                }),
            },
        }
    }

    fn padding(&self) -> Result<u32> {
        match self.0.get("pad_token_id") {
            None | Some(Value::Null) => Ok(0),
            Some(v) => match v.as_u64().and_then(|n| u32::try_from(n).ok()) {
                Some(n) => Ok(n),
                None => Err(Error::Config {
                    reason: format!("pad_token_id is {v}, expected a token id"),
                }),
            },
        }
    }

    fn only(&self, field: &str, supported: &str) -> Result<()> {
        match self.0.get(field).map(|v| (v, v.as_str())) {
            None | Some((Value::Null, _)) => Ok(()),
            Some((_, Some(s))) if s == supported => Ok(()),
            Some((v, _)) => Err(Error::Config {
                reason: format!("{field} is {v}, expected \"{supported}\""),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_families() {
        let bert = Config::bert(30522, 768, 12, 12, 3072).unwrap();
        assert_eq!(bert.head_width(), 64);
        assert_eq!(bert.attention_output_dropout(), 0.1);
        let text = r#"{"activation":"gelu","attention_dropout":0.1,"dim":768,"dropout":0.1,"hidden_dim":3072,
            "n_heads":12,"n_layers":6,"qa_dropout":0.2,"tie_weights_":true,"vocab_size":30522}"#;
        let distil = Config::from_json(text).unwrap();
        assert_eq!(distil.architecture, Architecture::DistilBert);
        assert_eq!((distil.layers, distil.token_types, distil.positions), (6, 0, 512));
        assert_eq!(distil.head_dropout, 0.2);
        assert_eq!(distil.attention_output_dropout(), 0.0);
        // What is saved keeps unknown fields and can be read again.
        let again = Config::from_value(distil.to_json()).unwrap();
        assert_eq!(again.raw["tie_weights_"], true);
        assert_eq!(again.hidden, 768);
    }

    #[test]
    fn refuses_what_it_cannot_compute() {
        let cases = [
            ("[]", "object"),
            ("{", "not JSON"),
            (r#"{"model_type":"roberta"}"#, "roberta"),
            (r#"{"model_type":"bert"}"#, "vocab_size is missing"),
            (r#"{"model_type":"bert","vocab_size":-1}"#, "vocab_size is -1"),
            (r#"{"model_type":"bert","hidden_act":"relu"}"#, "hidden_act"),
            (
                r#"{"model_type":"bert","vocab_size":9,"hidden_size":10,"num_hidden_layers":1,
                    "num_attention_heads":3,"intermediate_size":4}"#,
                "not a multiple",
            ),
        ];
        for (text, expected) in cases {
            let message = Config::from_json(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{text}: {message}");
        }
    }
}
