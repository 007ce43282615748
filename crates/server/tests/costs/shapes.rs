//! Bodies that are as costly to parse as their length allows.

use bytes::Bytes;

pub const MIB: usize = 1 << 20;

/// An endpoint, and where in its body a hostile value may stand.
pub struct Endpoint {
    pub path: &'static str,
    /// The members that a valid request needs besides.
    valid: &'static str,
    /// What stands before and behind a hostile value, in members that are read and one that is
    /// not.
    places: &'static [[&'static str; 2]],
}

pub const ENDPOINTS: &[Endpoint] = &[
    Endpoint {
        path: "/v1/chat/completions",
        valid: r#""max_tokens":1,"messages":[{"role":"user","content":"hi"}]"#,
        places: &[
            [r#""unknown":"#, ""],
            [r#""chat_template_kwargs":{"a":"#, "}"],
            [r#""messages":"#, ""],
            [r#""messages":[{"role":"user","content":"#, "}]"],
            [r#""tools":[{"function":{"name":"f","parameters":{"a":"#, "}}}]"],
        ],
    },
    Endpoint {
        path: "/v1/completions",
        valid: r#""max_tokens":1,"prompt":"hi""#,
        places: &[[r#""prompt":"#, ""], [r#""prompt":["#, "]"]],
    },
    Endpoint {
        path: "/v1/messages",
        valid: r#""max_tokens":1,"messages":[{"role":"user","content":"hi"}]"#,
        places: &[
            [r#""unknown":"#, ""],
            [r#""system":"#, ""],
            [r#""messages":"#, ""],
            [r#""messages":[{"role":"user","content":"#, "}]"],
            [r#""messages":[{"role":"user","content":[{"type":"text","text":"#, "}]}]"],
            [
                r#""messages":[{"role":"assistant","content":[{"type":"tool_use","id":"a","name":"f","input":{"a":"#,
                "}}]}]",
            ],
            [r#""tools":[{"name":"f","input_schema":{"a":"#, "}}]"],
        ],
    },
    Endpoint {
        path: "/api/chat",
        valid: r#""model":"m","stream":false,"options":{"num_predict":1},"messages":[{"role":"user","content":"hi"}]"#,
        places: &[
            [r#""unknown":"#, ""],
            [r#""options":"#, ""],
            [r#""messages":"#, ""],
            [r#""messages":[{"role":"user","content":"#, "}]"],
            [
                r#""messages":[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":{"a":"#,
                "}}}]}]",
            ],
        ],
    },
    Endpoint {
        path: "/v1/responses",
        valid: r#""store":false,"max_output_tokens":1,"input":"hi""#,
        places: &[
            [r#""unknown":"#, ""],
            [r#""instructions":"#, ""],
            [r#""metadata":"#, ""],
            [r#""input":"#, ""],
            [r#""input":[{"role":"user","content":"#, "}]"],
            [r#""input":[{"role":"user","content":[{"type":"input_text","text":"#, "}]}]"],
            [r#""input":[{"type":"function_call","call_id":"a","name":"f","arguments":"#, "}]"],
            [r#""tools":[{"type":"function","name":"f","parameters":{"a":"#, "}}]"],
        ],
    },
    Endpoint {
        path: "/v1/ui/chat",
        valid: r#""max_tokens":1,"messages":[{"role":"user","parts":[{"type":"text","text":"hi"}]}]"#,
        places: &[
            [r#""unknown":"#, ""],
            [r#""messages":"#, ""],
            [r#""messages":[{"role":"user","parts":"#, "}]"],
            [r#""messages":[{"role":"user","parts":[{"type":"text","text":"#, "}]}]"],
            [
                r#""messages":[{"role":"assistant","parts":[{"type":"tool-f","toolCallId":"a","state":"output-available","input":{},"output":"#,
                "}]}]",
            ],
        ],
    },
    Endpoint {
        path: "/v1/embeddings",
        valid: r#""model":"m""#,
        places: &[[r#""unknown":"#, ""], [r#""input":"#, ""], [r#""input":["#, "]"]],
    },
    Endpoint {
        path: "/infill",
        valid: r#""n_predict":1,"input_suffix":"b""#,
        places: &[
            [r#""unknown":"#, ""],
            [r#""input_prefix":"#, ""],
            [r#""input_extra":"#, ""],
            [r#""input_extra":[{"filename":"a","text":"#, "}]"],
        ],
    },
    Endpoint {
        path: "/api/generate",
        valid: r#""model":"m","stream":false,"options":{"num_predict":1},"prompt":"hi""#,
        places: &[
            [r#""unknown":"#, ""],
            [r#""options":"#, ""],
            [r#""prompt":"#, ""],
            [r#""system":"#, ""],
        ],
    },
    Endpoint { path: "/tokenize", valid: r#""x":1"#, places: &[[r#""prompt":"#, ""]] },
    Endpoint { path: "/detokenize", valid: r#""x":1"#, places: &[[r#""tokens":"#, ""]] },
];

/// What a value is made of: its beginning, what is repeated, and its end.
const SHAPES: &[(&str, [&str; 3])] = &[
    ("zeros", ["[0", ",0", "]"]),
    ("objects of an empty key", ["[0", ",{\"\":0}", "]"]),
    ("empty arrays", ["[0", ",[]", "]"]),
    ("arrays of one", ["[0", ",[0]", "]"]),
    ("empty strings", ["[0", ",\"\"", "]"]),
    ("nested arrays", ["", "[", ""]),
    ("nested objects", ["", "{\"\":", ""]),
    ("a long string", ["\"", "abcdefgh", "\""]),
    ("a string of escapes", ["\"", "\\u00e9", "\""]),
    ("white space", ["[", "        ", "]"]),
];

/// Every hostile body of `length` bytes that an endpoint may get.
pub fn bodies(endpoint: &'static Endpoint, length: usize) -> impl Iterator<Item = (String, Bytes)> {
    let shaped = endpoint.places.iter().flat_map(move |[before, behind]| {
        SHAPES.iter().map(move |(name, [begin, item, end])| {
            let valid = endpoint.valid;
            let head = format!("{{{valid},{before}{begin}");
            let tail = format!("{end}{behind}}}");
            let count = (length - head.len() - tail.len()) / item.len();
            let body = [&head, item.repeat(count).as_str(), &tail].concat();
            (format!("{before} {name}"), Bytes::from(body))
        })
    });
    shaped.chain([many_members(length)])
}

/// A body of as many members as fit.
fn many_members(length: usize) -> (String, Bytes) {
    let members = (0..length / 12).map(|index| format!("\"{index:07}\":0"));
    let body = format!("{{{}}}", members.collect::<Vec<_>>().join(","));
    ("many members".to_owned(), body.into())
}
