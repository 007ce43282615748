import{a as B}from"./chunk-4PC5ZWBK.js";import{a as K,c as C}from"./chunk-KJWCTRZQ.js";import"./chunk-JCHIK34N.js";import{d as J,f as u}from"./chunk-IPJHVCMR.js";import{c as L,m as $,n as H,w as R}from"./chunk-LXL7FYJ5.js";import{g as _,h as T,i as V,k as q,l as v,m as h,o as g}from"./chunk-QSRI3Y6M.js";import{a as k,c as w,i as S,j as I,n as U,o as F}from"./chunk-HOXZUWDE.js";import"./chunk-J3TXAQ4B.js";import{a as W,d as z}from"./chunk-FXCU7NM7.js";import"./chunk-3TA2XFFB.js";import"./chunk-Z24K5D3F.js";import"./chunk-BWZWJJRS.js";import"./chunk-E3BQTMXS.js";import{c as f,e as M,g as P}from"./chunk-CEAMIZB5.js";import{d as A,g as o}from"./chunk-D7T4XN55.js";function m({title:e,onClose:t,children:n}){let r=M(null),a=P();return f(()=>r.current?.showModal(),[]),o("dialog",{ref:r,"aria-labelledby":a,onClose:t,onClick:i=>{i.target===r.current&&t()},children:o("div",{class:"dialog-body",children:[o("header",{children:[o("h2",{id:a,children:e}),o(U,{icon:"close",label:"Close",onClick:t})]}),n]})})}function c({text:e,label:t}){return o("div",{class:"snippet",children:[o("pre",{tabIndex:0,children:e}),o(F,{text:()=>e,...t!==void 0&&{label:t}})]})}var pe=["curl","Python","JavaScript"];function G(){let e=w("curl");return o(m,{title:"Connect an app",onClose:u,children:[o("p",{children:"Any program that speaks OpenAI’s API can use this server. Give it this base URL:"}),o(c,{text:Q()}),o("p",{class:"faint",children:[S.value.apiKey===""?"Without a key on the server, any text will do as the API key.":"Use the API key of this server."," ","Anthropic’s API is under the same address without ",o("code",{children:"/v1"}),"."]}),o("div",{class:"tabs",role:"group","aria-label":"Language",children:pe.map(t=>o("button",{type:"button","aria-pressed":t===e.value,onClick:()=>e.value=t,children:t},t))}),o(c,{text:me(e.value)})]})}function Q(){return new URL("v1",document.baseURI).href}function me(e){let[t,n]=[Q(),V()?.id??"default"],r=S.value.apiKey!=="";switch(e){case"curl":return fe(t,n,r);case"Python":return he(t,n,r);case"JavaScript":return ge(t,n,r)}}function fe(e,t,n){let r=JSON.stringify({model:t,stream:!0,messages:[{role:"user",content:"Hello!"}]});return`curl -N ${e}/chat/completions${n?' -H "authorization: Bearer $LOQUENT_API_KEY"':""} \\
  -H "content-type: application/json" \\
  -d '${r.replaceAll("'","'\\''")}'`}function he(e,t,n){return`from openai import OpenAI

client = OpenAI(base_url="${e}", api_key=${n?'os.environ["LOQUENT_API_KEY"]':'"none"'})
stream = client.chat.completions.create(
    model=${JSON.stringify(t)},
    messages=[{"role": "user", "content": "Hello!"}],
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)`.replace(/^/,n?`import os
`:"")}function ge(e,t,n){return`import { streamChat } from "@loquent/client";

const answer = streamChat({
  url: "${e}/chat/completions",${n?`
  apiKey: process.env.LOQUENT_API_KEY,`:""}
  body: { model: ${JSON.stringify(t)}, messages: [{ role: "user", content: "Hello!" }] },
});
for await (const delta of answer) {
  if (delta.kind === "text") process.stdout.write(delta.text);
}`}function Y(){let e=be(),t=()=>{R(),u()};return o(m,{title:"Continue on another device",onClose:u,children:e===null?o("p",{children:"The answer is complete, or has not begun: there is nothing to continue."}):o("div",{class:"device",children:[C()?o(ye,{}):o(ke,{text:e}),o("p",{children:[C()?"Until then, another browser on this machine can open the link. It ":"Scan this, or open the link. The other device ","reads along from the beginning; both show the whole answer."]}),location.protocol==="http:"&&o("p",{class:"faint",children:["Over plain http the other device reads an event stream, which loss holds up. ",o(W,{text:z})]}),location.protocol==="https:"&&o(we,{}),o(c,{text:e,label:"Copy the link"}),o("p",{class:"faint",children:"Whoever has the link can read this one answer, and stop it."}),o("button",{type:"button",onClick:t,children:"Hand it over, and stop reading here"})]})})}function ye(){return o("p",{class:"notice",children:["This page is open as ",o("code",{children:location.hostname}),", which on another device means that device. Start the server with"," ",o("code",{children:"--host 0.0.0.0"})," and an API key, and open the page under this machine’s address in the network."]})}function we(){let e=w("");return f(()=>{h(".well-known/loquent").then(({body:t})=>e.value=ve(t),()=>{})},[]),e.value===""?null:o("p",{class:"faint",children:["The other browser warns that it does not know this server’s certificate. Before you go on there, compare the certificate’s SHA-256:"," ",o("code",{children:e.value})]})}function ve(e){let{https_certificate_sha256:t}=e??{};return typeof t!="string"||!/^[0-9a-f]{64}$/.test(t)?"":t.toUpperCase().replace(/..(?!$)/g,"$&:")}function be(){let e=H.value.get($.value.id)?.answer?.reference??null,t=L($.value).findLast(({message:n})=>n.role==="user");return e&&K({reference:e,question:t?.message.text??""})}function ke({text:e}){let t=w(null);return f(()=>{import("./dist-I2K374MK.js").then(({encode:n})=>{let{data:r,size:a}=n(e,{ecc:"L",border:1}),s=r.flatMap((i,d)=>i.flatMap((y,ce)=>y?[`M${ce} ${d}h1v1h-1z`]:[]));t.value={size:a,path:s.join("")}})},[e]),o("svg",{class:"qr",viewBox:`0 0 ${t.value?.size??1} ${t.value?.size??1}`,role:"img","aria-label":"QR code of the link","shape-rendering":"crispEdges",children:o("path",{d:t.value?.path??""})})}var X=`/* The dialogs of the chat page. Loaded with the first of them, so that a first visit loads less. */

.snippet {
  display: grid;
  grid-template-columns: minmax(0, 1fr) auto;
  align-items: start;
  padding: 0.3rem 0.3rem 0.3rem 0;
  border: 1px solid var(--line);
  border-radius: 0.7rem;
  background: var(--side);
}

.snippet pre {
  overflow-x: auto;
  margin: 0;
  padding: 0.35rem 0.5rem 0.35rem 1rem;
  border-radius: 0.6rem;
  font: 0.85rem/1.55 var(--mono);
}

.models {
  display: grid;
  gap: 0.6rem;
  margin: 0;
  padding: 0;
  list-style: none;
}

.models li {
  display: grid;
  grid-template-columns: minmax(0, 1fr) auto;
  gap: 0.1rem 0.75rem;
  align-items: center;
}

.models .name {
  overflow-wrap: anywhere;
  font-weight: 550;
}

.models :is(.faint, progress) {
  grid-column: 1;
}

.models progress {
  width: 100%;
  accent-color: var(--accent);
}

.models button {
  grid-area: 1 / 2 / span 2;
}

.refusal {
  color: var(--danger);
  font-size: 0.9rem;
}

.refusal:empty {
  display: none;
}

.download {
  display: grid;
  grid-template-columns: minmax(0, 1fr) auto;
  gap: 0.4rem 0.75rem;
  align-items: center;
}

.download :is(label, p, .running) {
  grid-column: 1 / -1;
  margin: 0;
}

.download .running {
  display: grid;
  grid-template-columns: subgrid;
}

.download .running .faint {
  grid-column: 1 / -1;
}

.download progress {
  width: 100%;
  accent-color: var(--accent);
}

.tabs {
  display: flex;
  gap: 0.35rem;
}

.tabs button[aria-pressed="true"] {
  border-color: var(--accent);
  color: var(--accent);
}

.shortcuts {
  display: grid;
  gap: 0.6rem;
  margin: 0;
}

.shortcuts div {
  display: grid;
  grid-template-columns: 11rem 1fr;
  gap: 0.75rem;
}

.shortcuts dd {
  margin: 0;
}

kbd {
  padding: 0.1rem 0.45rem;
  border: 1px solid var(--line);
  border-bottom-width: 2px;
  border-radius: 0.35rem;
  font: 0.8rem var(--mono);
}

.device {
  display: grid;
  grid-template-columns: minmax(0, 1fr);
  justify-items: center;
  gap: 0.9rem;
}

.qr {
  width: min(15rem, 100%);
  padding: 0.75rem;
  border-radius: 0.75rem;
  background: #ffffff;
}

.qr path {
  fill: #000000;
}

.device .snippet {
  width: 100%;
}

.device code {
  overflow-wrap: anywhere;
}

@media (max-width: 640px) {
  .shortcuts div {
    grid-template-columns: 1fr;
    gap: 0.1rem;
  }
}
`;var l=k({is:"none"}),D="api/v1/models/download",De=["downloading","completed","paused","failed"],Se=500,Te=500,N=null;async function j(){try{let{ok:e,body:t}=await h(D,{headers:v()}),{data:n}=t??{};e&&Array.isArray(n)?te(ne(n[0])):l.value={is:"none"}}catch{l.value={is:"none"}}}async function ee(e){await E(D,"POST",JSON.stringify({model:e}))}async function oe(e){await E(`${D}/status/${encodeURIComponent(e)}`,"DELETE")}async function $e(e){await E(`${D}/status/${encodeURIComponent(e)}`,"GET")}async function E(e,t,n){let r={"content-type":"application/json",...v()};try{let{ok:a,status:s,body:i}=await h(e,{method:t,headers:r,...n!==void 0&&{body:n}}),d=ne(i);a&&d!==null?te(d):Z(Ne(i)??`The server refused this with status ${s}.`)}catch{Z("The server does not answer. Check that it runs and that you are online.")}}function Z(e){let t=l.peek();l.value={is:"offered",latest:t.is==="offered"?t.latest:null,refusal:e}}function te(e){let t=l.peek(),n=t.is==="offered"&&t.latest?.status==="downloading"&&t.latest.id===e?.id;l.value={is:"offered",latest:e,refusal:""},N!==null&&clearTimeout(N),N=e?.status==="downloading"?setTimeout(()=>{$e(e.id)},Se):null,n&&e?.model&&(I({model:e.model}),g())}function ne(e){let t=e??{},[n,r]=[b(t.job_id),b(t.requested)],a=De.find(y=>y===t.status);if(n===null||r===null||a===void 0)return null;let[s,i,d]=[t.downloaded_bytes,t.total_size_bytes,t.bytes_per_second].map(Ee);return{id:n,asked:r,status:a,doneBytes:s,totalBytes:i,bytesPerSecond:d,model:b(t.model),why:b(t.error)}}function O({asked:e,status:t,doneBytes:n,totalBytes:r,bytesPerSecond:a,model:s,why:i}){switch(t){case"downloading":{if(r===0)return"looking for it";let d=a>0?(r-n)/a:null,y=d===null||d<1?"":`, ${Ce(d)} left`;return`${x(n)} of ${x(r)} MB${y}`}case"completed":return`${s??e} is on the server. Your next question goes to it.`;case"paused":return`stopped at ${x(n)} of ${x(r)} MB; the next download of ${e} goes on there`;case"failed":return i??"It failed. The server’s log says why."}}function Ce(e){return e<90?`${Math.ceil(e)} s`:e<5400?`${Math.round(e/60)} min`:`${Math.round(e/3600)} h`}function x(e){return(e/1e6).toFixed(e<1e8?1:0)}function Ne(e){let{message:t}=(e??{}).error??{};return b(t)}function b(e){return typeof e=="string"&&e!==""?e.slice(0,Te):null}function Ee(e){return typeof e=="number"&&Number.isFinite(e)&&e>0?e:0}var re="qwen3:0.6b";function ae(){if(l.value.is==="none")return null;let{latest:e,refusal:t}=l.value,n=e?.status==="downloading";return o("form",{class:"download",onSubmit:r=>{r.preventDefault();let a=new FormData(r.currentTarget).get("model");ee(typeof a=="string"&&a.trim()!==""?a.trim():re)},children:[o("label",{for:"download-model",children:"Download a model from Hugging Face"}),o("input",{id:"download-model",name:"model",placeholder:re,disabled:n,autocomplete:"off",spellcheck:!1}),o("button",{type:"submit",disabled:n,children:"Download"}),e!==null&&o(Oe,{latest:e}),o("p",{class:"refusal",role:"status",children:t})]})}function Oe({latest:e}){let{id:t,asked:n,status:r,doneBytes:a,totalBytes:s}=e;return r!=="downloading"?o("p",{class:r==="failed"?"refusal":"faint",children:O(e)}):o("div",{class:"running",children:[o("span",{class:"faint",children:[n,": ",O(e)]}),o("progress",{"aria-label":`Downloaded part of ${n}`,max:1,...s>0&&{value:a/s}}),o("button",{type:"button",onClick:()=>{oe(t)},children:"Stop"})]})}var p=k({is:"none"}),Ae=300;async function se(e,t){p.value={is:"asking",model:t},p.value=await Me(e,t),g()}async function Me(e,t){let n={"content-type":"application/json",...v()};try{let{ok:r,status:a,body:s}=await h(`v1/models/${e}`,{method:"POST",headers:n,body:JSON.stringify({model:t})});return r?{is:"none"}:{is:"refused",why:Pe(a,s),isForAll:a===401||a===403}}catch{return{is:"refused",why:"The server does not answer. Check that it runs and that you are online.",isForAll:!1}}}function Pe(e,t){let{message:n}=(t??{}).error??{};return e===401?"This server needs an API key to load and unload models: enter that of an administrator in Settings.":typeof n=="string"?n.slice(0,Ae):`The server refused this with status ${e}.`}function ie({presence:e,loadedShare:t}){switch(e){case"loaded":return"loaded";case"loading":return t===null?"loading":`loading, ${Math.floor(t*100)} %`;case"unloading":return"being unloaded, once its answers have ended";case"failed":return"could not be loaded: the server’s log says why";case"unloaded":return"not loaded; a question to it loads it";case null:return""}}function le({presence:e},t){return e==="unloaded"||e==="failed"?"load":e==="loaded"&&!t?"unload":null}function de(){let e=T.value.is==="ready"?T.value.models:[];return f(()=>{p.value={is:"none"},g(),j()},[]),o(m,{title:"Models",onClose:u,children:[e.length>0&&o("ul",{class:"models","aria-label":"Models of this server",children:e.map(t=>o(Le,{model:t,isOnly:e.length===1},t.id))}),o("p",{class:"refusal",role:"status",children:p.value.is==="refused"&&p.value.why}),o(ae,{}),o(Ie,{})]})}function Le({model:e,isOnly:t}){let{id:n,presence:r,loadedShare:a}=e,s=le(e,t),i=p.value.is==="asking"||p.value.is==="refused"&&p.value.isForAll;return o("li",{children:[o("span",{class:"name",children:n}),o("span",{class:"faint",children:ie(e)}),r==="loading"&&o("progress",{"aria-label":`${n}: loaded part`,max:1,...a!==null&&{value:a}}),s!==null&&o("button",{type:"button",disabled:i,"aria-label":`${s==="load"?"Load":"Unload"} ${n}`,onClick:()=>{se(s,n)},children:s==="load"?"Load":"Unload"})]})}function Ie(){return o(A,{children:[o("p",{children:[q()&&`${_} only knows about streaming. `,l.value.is==="offered"?"A model that was downloaded here is not served after the server’s next start, unless it is named on the server’s machine:":"To serve a model that answers questions of every kind, run this on the server’s machine. It downloads the model from Hugging Face once, and goes on where a download was broken off:"]}),o(c,{text:"loquent serve qwen3:0.6b"}),o("p",{children:"For the models in a folder, which can then be loaded and unloaded here:"}),o(c,{text:"loquent serve --models-dir path/to/folder"}),o("p",{children:"In front of a server that you have already, such as vLLM, llama-server or Ollama:"}),o(c,{text:"loquent serve --upstream http://localhost:11434"}),o("p",{class:"faint",children:o("a",{href:"docs/models",children:"Names of models, and where they are kept"})})]})}var _e=[["Enter","Send"],["Shift + Enter","New line"],["↑","Edit the last question (in an empty prompt)"],["Escape","Stop the answer, or close a panel"],["Ctrl/⌘ + Shift + O","New chat"],["Ctrl/⌘ + K","Search conversations"],["/","Go to the prompt"],["?","This list"]];function ue(){return o(m,{title:"Keyboard shortcuts",onClose:u,children:o("dl",{class:"shortcuts",children:_e.map(([e,t])=>o("div",{children:[o("dt",{children:o("kbd",{children:e})}),o("dd",{children:t})]},e))})})}B(X);function Wo(){switch(J.value){case"connect":return o(G,{});case"models":return o(de,{});case"shortcuts":return o(ue,{});case"device":return o(Y,{});case"none":return null}}export{Wo as Dialogues};
