import{a as o}from"./chunk-EN7HB72A.js";var e=o(""),r=o([]);export{e as a,r as b};
