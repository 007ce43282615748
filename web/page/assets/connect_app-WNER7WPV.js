import{a as d}from"./chunk-IEVBXMEU.js";import{d as p,f as m}from"./chunk-5YNXP2XO.js";import"./chunk-7Y4XPYM4.js";import{i as c}from"./chunk-VM7BHB6R.js";import{c as l,h as i,n as u}from"./chunk-EA2KCMJF.js";import"./chunk-J3TXAQ4B.js";import"./chunk-3TA2XFFB.js";import"./chunk-Z24K5D3F.js";import"./chunk-BWZWJJRS.js";import"./chunk-E3BQTMXS.js";import{d as s,n as e}from"./chunk-PRCL6RWW.js";var h=["curl","Python","JavaScript"];function S(){let t=p.value==="connect";return e(d,{title:t?"Connect an app":"Use your own model",onClose:m,children:t?e(f,{}):e(y,{})})}function g(){return new URL("v1",document.baseURI).href}function f(){let t=l("curl");return e(s,{children:[e("p",{children:"Any program that speaks OpenAI’s API can use this server. Give it this base URL:"}),e(a,{text:g()}),e("p",{class:"faint",children:[i.value.apiKey===""?"Without a key on the server, any text will do as the API key.":"Use the API key of this server."," ","Anthropic’s API is under the same address without ",e("code",{children:"/v1"}),"."]}),e("div",{class:"tabs",role:"group","aria-label":"Language",children:h.map(n=>e("button",{type:"button","aria-pressed":n===t.value,onClick:()=>t.value=n,children:n},n))}),e(a,{text:v(t.value)})]})}function y(){return e(s,{children:[e("p",{children:"Stop the server, and start it with a model in the GGUF format. From Hugging Face:"}),e(a,{text:"loquent serve --hf Qwen/Qwen3-0.6B-GGUF"}),e("p",{children:"From a file:"}),e(a,{text:"loquent serve --model path/to/model.gguf"}),e("p",{children:"In front of a server that you have already, such as vLLM, llama-server or Ollama:"}),e(a,{text:"loquent serve --upstream http://localhost:11434"})]})}function a({text:t}){return e("div",{class:"snippet",children:[e("pre",{tabIndex:0,children:t}),e(u,{text:()=>t})]})}function v(t){let[n,o]=[g(),c()?.id??"default"],r=i.value.apiKey!=="";switch(t){case"curl":return b(n,o,r);case"Python":return k(n,o,r);case"JavaScript":return A(n,o,r)}}function b(t,n,o){let r=JSON.stringify({model:n,stream:!0,messages:[{role:"user",content:"Hello!"}]});return`curl -N ${t}/chat/completions${o?' -H "authorization: Bearer $LOQUENT_API_KEY"':""} \\
  -H "content-type: application/json" \\
  -d '${r.replaceAll("'","'\\''")}'`}function k(t,n,o){return`from openai import OpenAI

client = OpenAI(base_url="${t}", api_key=${o?'os.environ["LOQUENT_API_KEY"]':'"none"'})
stream = client.chat.completions.create(
    model=${JSON.stringify(n)},
    messages=[{"role": "user", "content": "Hello!"}],
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)`.replace(/^/,o?`import os
`:"")}function A(t,n,o){return`import { streamChat } from "@loquent/client";

const answer = streamChat({
  url: "${t}/chat/completions",${o?`
  apiKey: process.env.LOQUENT_API_KEY,`:""}
  body: { model: ${JSON.stringify(n)}, messages: [{ role: "user", content: "Hello!" }] },
});
for await (const delta of answer) {
  if (delta.kind === "text") process.stdout.write(delta.text);
}`}export{S as ConnectDialog};
