//! One table of parameter names and shapes over one flat `f32` buffer.
//!
//! Weights, gradients and both moments of the optimiser are flat buffers of the same length; checkpoints, buckets,
//! clipping and weight decay all read this table. Names are Hugging Face's, so that a file's tensor is found by name.
//!
//! The order is the order of the forward pass, embeddings first, so that gradients become final from the end of the
//! buffer to its start. The three attention projections lie side by side: `(3h, h)` weights, then `3h` biases, which
//! makes one matrix product of them without a copy while each keeps its own name and shape.

use crate::config::{Architecture, Config};
use std::collections::HashMap;
use std::ops::Range;

/// What stands on top of the encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// Two logits for each token: start and end of the answer.
    QuestionAnswering,
    /// A distribution over the vocabulary for masked tokens; its last projection is the word embedding table.
    MaskedLanguage,
}

/// One tensor of the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Param {
    /// Hugging Face's name.
    pub name: String,
    /// Its shape; weights of linear layers are `(out, in)`.
    pub shape: Vec<usize>,
    /// Where it lies in the flat buffers.
    pub range: Range<usize>,
    /// Whether weight decay applies: everything but biases and LayerNorm.
    pub decays: bool,
    init: Init,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Init {
    Normal,
    /// Normal, but the row of the padding token is zero.
    Words,
    Zero,
    One,
}

/// A weight matrix with its bias.
#[derive(Debug, Clone)]
pub(crate) struct Linear {
    pub(crate) weight: Range<usize>, // (out, in)
    pub(crate) bias: Range<usize>,   // (out)
}

/// A LayerNorm's scale and shift.
#[derive(Debug, Clone)]
pub(crate) struct Norm {
    pub(crate) weight: Range<usize>, // (h)
    pub(crate) bias: Range<usize>,   // (h)
}

/// Where the embedding tables lie.
#[derive(Debug, Clone)]
pub(crate) struct Embeddings {
    pub(crate) words: Range<usize>,               // (v, h)
    pub(crate) positions: Range<usize>,           // (positions, h)
    pub(crate) token_types: Option<Range<usize>>, // (2, h), BERT only
    pub(crate) norm: Norm,
}

/// Where the parts of one encoder layer lie.
#[derive(Debug, Clone)]
pub(crate) struct Layer {
    pub(crate) qkv: Linear, // (3h, h): query, key, value
    pub(crate) out: Linear, // (h, h)
    pub(crate) attention_norm: Norm,
    pub(crate) up: Linear,   // (f, h)
    pub(crate) down: Linear, // (h, f)
    pub(crate) output_norm: Norm,
}

impl Layer {
    /// The whole layer, from its first parameter to its last.
    pub(crate) fn range(&self) -> Range<usize> {
        self.qkv.weight.start..self.output_norm.bias.end
    }
}

/// Where the head's parts lie.
#[derive(Debug, Clone)]
pub(crate) enum HeadRanges {
    QuestionAnswering {
        span: Linear,
    }, // (2, h)
    MaskedLanguage {
        dense: Linear,
        norm: Norm,
        decoder_bias: Range<usize>,
    }, // (h, h), (h), (v)
}

/// The table.
#[derive(Debug, Clone)]
pub struct Params {
    list: Vec<Param>,
    by_name: HashMap<String, usize>,
    head: Head,
    pub(crate) embeddings: Embeddings,
    pub(crate) layers: Vec<Layer>,
    pub(crate) head_ranges: HeadRanges,
}

impl Params {
    /// The table of `config` with the given head.
    pub fn new(config: &Config, head: Head) -> Params {
        let mut table = Table {
            list: Vec::new(),
            used: 0,
        };
        let (h, f) = (config.hidden, config.intermediate);
        let prefix = config.architecture.name();

        let at = |part: &str| format!("{prefix}.embeddings.{part}");
        let embeddings = Embeddings {
            words: table.push(at("word_embeddings.weight"), &[config.vocabulary, h], Init::Words),
            positions: table.push(at("position_embeddings.weight"), &[config.positions, h], Init::Normal),
            token_types: (config.token_types > 0).then(|| {
                table.push(
                    at("token_type_embeddings.weight"),
                    &[config.token_types, h],
                    Init::Normal,
                )
            }),
            norm: table.norm(&at("LayerNorm"), h),
        };

        let names = LayerNames::of(config.architecture);
        let layers = (0..config.layers)
            .map(|layer| {
                let at = |part: &str| format!("{prefix}.{}.{layer}.{part}", names.stack);
                Layer {
                    qkv: table.linears(&names.qkv.map(&at), h, h),
                    out: table.linears(&[at(names.out)], h, h),
                    attention_norm: table.norm(&at(names.attention_norm), h),
                    up: table.linears(&[at(names.up)], f, h),
                    down: table.linears(&[at(names.down)], h, f),
                    output_norm: table.norm(&at(names.output_norm), h),
                }
            })
            .collect();

        let head_ranges = match (head, config.architecture) {
            (Head::QuestionAnswering, _) => HeadRanges::QuestionAnswering {
                span: table.linears(&["qa_outputs".into()], 2, h),
            },
            (Head::MaskedLanguage, Architecture::Bert) => HeadRanges::MaskedLanguage {
                dense: table.linears(&["cls.predictions.transform.dense".into()], h, h),
                norm: table.norm("cls.predictions.transform.LayerNorm", h),
                decoder_bias: table.push("cls.predictions.bias".into(), &[config.vocabulary], Init::Zero),
            },
            (Head::MaskedLanguage, Architecture::DistilBert) => HeadRanges::MaskedLanguage {
                dense: table.linears(&["vocab_transform".into()], h, h),
                norm: table.norm("vocab_layer_norm", h),
                decoder_bias: table.push("vocab_projector.bias".into(), &[config.vocabulary], Init::Zero),
            },
        };

        let by_name = table
            .list
            .iter()
            .enumerate()
            .map(|(i, p)| (p.name.clone(), i))
            .collect();
        Params {
            list: table.list,
            by_name,
            head,
            embeddings,
            layers,
            head_ranges,
        }
    }

    /// Number of parameters: the length of every flat buffer.
    pub fn total(&self) -> usize {
        self.list.last().map_or(0, |p| p.range.end)
    }

    /// What stands on top of the encoder.
    pub fn head(&self) -> Head {
        self.head
    }

    /// The tensors in the order of the buffer.
    pub fn iter(&self) -> std::slice::Iter<'_, Param> {
        self.list.iter()
    }

    /// The tensor of that name.
    pub fn find(&self, name: &str) -> Option<&Param> {
        self.by_name.get(name).map(|&i| &self.list[i])
    }

    /// The tensor that holds element `index` of the flat buffer.
    ///
    /// # Panics
    /// When `index` is not below [`total`](Params::total).
    pub fn owner(&self, index: usize) -> &Param {
        assert!(index < self.total(), "element {index} of {}", self.total());
        &self.list[self.list.partition_point(|p| p.range.end <= index)]
    }

    /// New weights for every tensor: normal with the configured deviation, biases 0, LayerNorm scales 1, the padding
    /// token's row 0. The values of a tensor depend on the seed, its name and its shape only.
    pub fn initialise(&self, config: &Config, seed: u64) -> Vec<f32> {
        let mut weights = vec![0.0; self.total()];
        for param in &self.list {
            param.initialise(&mut weights[param.range.clone()], config, seed);
        }
        weights
    }
}

impl<'a> IntoIterator for &'a Params {
    type Item = &'a Param;
    type IntoIter = std::slice::Iter<'a, Param>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Param {
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether the tensor has no element.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// Fills `out`, which is this tensor's part of a flat buffer, with new weights.
    pub fn initialise(&self, out: &mut [f32], config: &Config, seed: u64) {
        assert_eq!(out.len(), self.len(), "buffer of {}", self.name);
        match self.init {
            Init::Zero => out.fill(0.0),
            Init::One => out.fill(1.0),
            Init::Normal | Init::Words => {
                // The 64-bit FNV-1a hash: the name, rather than the place in the table, selects the stream.
                let name = self.name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                    (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
                });
                let key = mix(seed ^ mix(name));
                for (i, value) in out.iter_mut().enumerate() {
                    *value = config.initializer_range * normal(key, i as u64);
                }
            }
        }
        if self.init == Init::Words {
            let row = config.padding_id as usize * config.hidden;
            if let Some(row) = out.get_mut(row..row + config.hidden) {
                row.fill(0.0);
            }
        }
    }
}

/// Collects tensors one after the other.
struct Table {
    list: Vec<Param>,
    used: usize,
}

impl Table {
    fn push(&mut self, name: String, shape: &[usize], init: Init) -> Range<usize> {
        let range = self.used..self.used + shape.iter().product::<usize>();
        self.used = range.end;
        let decays = !name.ends_with("bias") && init != Init::One;
        self.list.push(Param {
            name,
            shape: shape.to_vec(),
            range: range.clone(),
            decays,
            init,
        });
        range
    }

    /// The weights of all names, then their biases: one wide layer made of several named ones.
    fn linears(&mut self, names: &[String], out: usize, input: usize) -> Linear {
        let start = self.used;
        for name in names {
            self.push(format!("{name}.weight"), &[out, input], Init::Normal);
        }
        let middle = self.used;
        for name in names {
            self.push(format!("{name}.bias"), &[out], Init::Zero);
        }
        Linear {
            weight: start..middle,
            bias: middle..self.used,
        }
    }

    fn norm(&mut self, name: &str, width: usize) -> Norm {
        Norm {
            weight: self.push(format!("{name}.weight"), &[width], Init::One),
            bias: self.push(format!("{name}.bias"), &[width], Init::Zero),
        }
    }
}

/// What each family calls the parts of a layer.
struct LayerNames {
    stack: &'static str,
    qkv: [&'static str; 3],
    out: &'static str,
    attention_norm: &'static str,
    up: &'static str,
    down: &'static str,
    output_norm: &'static str,
}

impl LayerNames {
    fn of(architecture: Architecture) -> LayerNames {
        match architecture {
            Architecture::Bert => LayerNames {
                stack: "encoder.layer",
                qkv: ["attention.self.query", "attention.self.key", "attention.self.value"],
                out: "attention.output.dense",
                attention_norm: "attention.output.LayerNorm",
                up: "intermediate.dense",
                down: "output.dense",
                output_norm: "output.LayerNorm",
            },
            Architecture::DistilBert => LayerNames {
                stack: "transformer.layer",
                qkv: ["attention.q_lin", "attention.k_lin", "attention.v_lin"],
                out: "attention.out_lin",
                attention_norm: "sa_layer_norm",
                up: "ffn.lin1",
                down: "ffn.lin2",
                output_norm: "output_layer_norm",
            },
        }
    }
}

/// Steele and Vigna's 64-bit finaliser (the output function of SplitMix64).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A standard normal number to within the difference between it and the centred sum of eight uniform ones, which no
/// training notices. Sums of integers are exact, so the number is the same on every machine.
fn normal(key: u64, index: u64) -> f32 {
    let sum = |word: u64| (0..4).map(|i| ((word >> (16 * i)) & 0xffff) as i32).sum::<i32>();
    let total = sum(mix(key ^ mix(2 * index))) + sum(mix(key ^ mix(2 * index + 1)));
    // Eight uniform integers below 65536 have mean 4 * 65535 and variance 8 (65536^2 - 1) / 12.
    const SCALE: f32 = 1.0 / 53_509.92;
    (total - 4 * 65535) as f32 * SCALE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distil(layers: usize) -> Config {
        Config::from_json(&format!(
            r#"{{"model_type":"distilbert","dim":768,"hidden_dim":3072,"n_heads":12,"n_layers":{layers},
                "vocab_size":30522}}"#
        ))
        .unwrap()
    }

    /// The published sizes of the question-answering models.
    #[test]
    fn counts_of_published_models() {
        assert_eq!(Params::new(&distil(6), Head::QuestionAnswering).total(), 66_364_418);
        let bert = Config::bert(30522, 768, 12, 12, 3072).unwrap();
        assert_eq!(Params::new(&bert, Head::QuestionAnswering).total(), 108_893_186);
        let large = Config::bert(30522, 1024, 24, 16, 4096).unwrap();
        assert_eq!(Params::new(&large, Head::QuestionAnswering).total(), 334_094_338);
    }

    #[test]
    fn tensors_tile_the_buffer() {
        for head in [Head::QuestionAnswering, Head::MaskedLanguage] {
            for config in [Config::bert(50, 12, 2, 3, 20).unwrap(), distil(1)] {
                let params = Params::new(&config, head);
                let mut end = 0;
                for param in &params {
                    assert_eq!(param.range.start, end, "{}", param.name);
                    assert_eq!(param.len(), param.shape.iter().product::<usize>());
                    assert_eq!(params.find(&param.name), Some(param));
                    assert_eq!(params.owner(param.range.start), param);
                    assert_eq!(params.owner(param.range.end - 1), param);
                    end = param.range.end;
                }
                assert_eq!(params.total(), end);
            }
        }
    }

    #[test]
    fn decay_spares_biases_and_norms() {
        let params = Params::new(&Config::bert(50, 12, 2, 3, 20).unwrap(), Head::QuestionAnswering);
        for param in &params {
            let spared = param.name.contains("bias") || param.name.contains("LayerNorm");
            assert_eq!(param.decays, !spared, "{}", param.name);
        }
        let params = Params::new(&distil(1), Head::QuestionAnswering);
        assert!(
            !params
                .find("distilbert.transformer.layer.0.sa_layer_norm.weight")
                .unwrap()
                .decays
        );
    }

    #[test]
    fn new_weights() {
        let config = Config::bert(500, 48, 1, 3, 100).unwrap();
        let params = Params::new(&config, Head::QuestionAnswering);
        let weights = params.initialise(&config, 42);
        let words = &weights[params.embeddings.words.clone()];
        assert!(words[..48].iter().all(|&w| w == 0.0), "the padding row");
        let rest = &words[48..];
        let mean = rest.iter().map(|&w| f64::from(w)).sum::<f64>() / rest.len() as f64;
        let variance = rest.iter().map(|&w| (f64::from(w) - mean).powi(2)).sum::<f64>() / rest.len() as f64;
        // Five standard errors of 23,952 samples.
        assert!(mean.abs() < 5.0 * 0.02 / 154.0, "mean {mean}");
        assert!(
            (variance.sqrt() / 0.02 - 1.0).abs() < 5.0 / 218.0,
            "deviation {}",
            variance.sqrt()
        );
        assert!(weights[params.embeddings.norm.weight.clone()].iter().all(|&w| w == 1.0));
        // The other head sees the same encoder.
        let other = Params::new(&config, Head::MaskedLanguage).initialise(&config, 42);
        let encoder = params.layers[0].range().end;
        assert_eq!(other[..encoder], weights[..encoder]);
        assert_ne!(params.initialise(&config, 43)[48..96], weights[48..96]);
    }
}
